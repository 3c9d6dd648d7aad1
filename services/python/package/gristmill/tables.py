"""A table from the agent as the DataFrame that ``run`` gets."""

import mmap

from gristmill._native import read_table


class LoadError(Exception):
    """The mini-batch cannot be turned into an argument for ``run``."""


def read_frame(fd, length):
    """The frame in the memory file ``fd``: fresh index from 0, columns in order, types as scripts know them."""
    import numpy
    import pandas

    rows, columns = read_table(fd, length)
    data = {}
    for position, (name, kind, array) in enumerate(columns):
        if kind == "foreign":
            array = _foreign_column(fd, length, position, name, array)
        elif kind == "date":
            array = array.view("datetime64[D]").astype(object)
        elif kind != "plain":
            array = _instants(pandas, array.view(kind))
        if getattr(array, "dtype", None) == numpy.dtype(object):
            # Said explicitly, or newer releases of pandas make a column of text something else.
            array = pandas.Series(array, dtype=object)
        data[position] = array
    frame = pandas.DataFrame(data, index=pandas.RangeIndex(rows))
    frame.columns = pandas.Index([name for name, _, _ in columns], dtype=object)
    return frame


def _instants(pandas, array):
    """Instants that do not fit nanoseconds keep their unit; releases of pandas that know no other get objects."""
    try:
        return pandas.Series(array)
    except pandas.errors.OutOfBoundsDatetime:
        return array.astype(object)


def _foreign_column(fd, length, position, name, arrow_type):
    try:
        import pyarrow
    except ImportError:
        raise LoadError(
            f"column '{name}' has the type {arrow_type}, which only pyarrow can turn into pandas: "
            "add pyarrow to the environment of the script"
        ) from None
    # Arrow may refer to the map as long as it likes: the last reference closes it.
    memory = mmap.mmap(fd, length, prot=mmap.PROT_READ)
    try:
        table = pyarrow.ipc.open_stream(pyarrow.py_buffer(memory)).read_all()
        return table.column(position).to_pandas()
    except pyarrow.ArrowException as error:
        raise LoadError(f"column '{name}' of the type {arrow_type} cannot be turned into pandas: {error}") from None
