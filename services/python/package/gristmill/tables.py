"""Converts a table from the agent to the DataFrame for ``run``."""

import os

from gristmill._native import TableReader

BLOCKS_MAX = 100
"""Maximum number of pieces of a frame before pandas warns."""

_reader = TableReader()


class LoadError(Exception):
    """The mini-batch cannot be converted to an argument of ``run``."""


def read_frame(fd, length):
    """Returns the frame in the memory file ``fd``: new index from 0, columns in order, types of the original."""
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
            # Explicit, because newer releases of pandas use another type for columns of text.
            array = pandas.Series(array, dtype=object, copy=False)
        data[position] = array
    # This frame owns the arrays.
    frame = pandas.DataFrame(data, index=pandas.RangeIndex(rows), copy=len(data) > BLOCKS_MAX)
    frame.columns = pandas.Index([name for name, _, _ in columns], dtype=object)
    return frame


def _instants(pandas, array):
    """Keeps the unit of instants that do not fit nanoseconds; releases of pandas without other units get objects."""
    try:
        return pandas.Series(array)
    except pandas.errors.OutOfBoundsDatetime:
        return array.astype(object)


def _arrow_table(fd, length, name, arrow_type):
    """Returns the table as read by ``pyarrow``, with its own copy of the memory, since the agent reuses the file."""
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
