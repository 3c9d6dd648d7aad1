"""A table from the agent as the DataFrame that ``run`` gets."""

import os

from gristmill._native import TableReader

BLOCKS_MAX = 100
"""pandas warns of frames in more pieces than this."""

_reader = TableReader()


class LoadError(Exception):
    """The mini-batch cannot be turned into an argument for ``run``."""


def read_frame(fd, length):
    """The frame in the memory file ``fd``: fresh index from 0, columns in order, types as scripts know them."""
    import numpy
    import pandas

    rows, columns = _reader.read(fd, length)
    data = {}
    foreign = None
    for position, (name, kind, array) in enumerate(columns):
        if kind == "foreign":
            if foreign is None:
                foreign = _arrow_table(fd, length, name, array)
            array = _foreign_column(foreign, position, name, array)
        elif kind == "date":
            array = array.view("datetime64[D]").astype(object)
        elif kind != "plain":
            array = _instants(pandas, array.view(kind))
        if getattr(array, "dtype", None) == numpy.dtype(object):
            # Said explicitly, or newer releases of pandas make a column of text something else.
            array = pandas.Series(array, dtype=object, copy=False)
        data[position] = array
    # The arrays are this frame's own.
    frame = pandas.DataFrame(data, index=pandas.RangeIndex(rows), copy=len(data) > BLOCKS_MAX)
    frame.columns = pandas.Index([name for name, _, _ in columns], dtype=object)
    return frame


def _instants(pandas, array):
    """Instants that do not fit nanoseconds keep their unit; releases of pandas that know no other get objects."""
    try:
        return pandas.Series(array)
    except pandas.errors.OutOfBoundsDatetime:
        return array.astype(object)


def _arrow_table(fd, length, name, arrow_type):
    """The table as ``pyarrow`` reads it, out of memory of its own: the file is used again."""
    try:
        import pyarrow
    except ImportError:
        raise LoadError(
            f"column '{name}' has the type {arrow_type}, which only pyarrow can turn into pandas: "
            "add pyarrow to the environment of the script"
        ) from None
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        return pyarrow.ipc.open_stream(file.read(length)).read_all()


def _foreign_column(table, position, name, arrow_type):
    import pyarrow

    try:
        return table.column(position).to_pandas()
    except pyarrow.ArrowException as error:
        raise LoadError(f"column '{name}' of the type {arrow_type} cannot be turned into pandas: {error}") from None
