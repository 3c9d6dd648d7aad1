"""Converts a table from the agent to the DataFrame for ``run``, or to items that are dictionaries."""

import functools
import json
import os

from gristmill._native import TableReader

BLOCKS_MAX = 100
"""Maximum number of pieces of a frame before pandas warns."""

_reader = TableReader()


_divided = (None, None)
"""The number of the mini-batch that is run in ranges, and its frame."""


class LoadError(Exception):
    """The mini-batch cannot be converted to an argument of ``run``."""


def frame_of(mini_batch, fd):
    """Returns the frame of a mini-batch; for a range, that of the whole mini-batch: hundreds of ranges may share it,
    and each gets a copy of its rows."""
    global _divided
    number, frame = _divided
    if "items" in mini_batch and mini_batch["mini_batch"] == number:
        return frame
    frame = read_frame(fd, mini_batch["payload"]["bytes"])
    is_shared = "items" in mini_batch and _holds_only_values(frame)
    _divided = (mini_batch["mini_batch"], frame) if is_shared else (None, None)
    return frame


def _holds_only_values(frame):
    """Returns whether a copy of the frame shares no object that a script can change, such as a dict or a list."""
    import pandas

    objects = (column for _, column in frame.items() if column.dtype == object)
    return all(pandas.api.types.infer_dtype(column) != "mixed" for column in objects)


def read_frame(fd, length):
    """Returns the frame in the memory file ``fd``: a new index from 0, columns in order, and the types of Azure ML, or
    those of pandas if the input asks for them."""
    rows, columns = _reader.read(fd, length, False, getattr(_text_type(), "storage", "") == "pyarrow")
    return _frame(fd, length, rows, columns)


def read_items(fd, length, positions):
    """Returns the rows at some positions as dictionaries: a line of JSON as ``json.loads`` reads it, the rows of other
    tables as Python objects, with ``None`` for missing values. Columns from the path follow."""
    rows, columns = _reader.read(fd, length, True, False)
    place = next((place for place, (_, kind, _) in enumerate(columns) if kind == "lines"), None)
    if place is None:
        return _dictionaries(_frame(fd, length, rows, columns), positions)
    selection, _, lines = columns[place]
    wanted = {name for name, _, _ in columns[:place]} if selection else None
    from_path = columns[place + 1 :]
    items = []
    for position in positions:
        item = json.loads(lines[position])
        if wanted is not None:
            item = {key: value for key, value in item.items() if key in wanted}
        item.update((name, values[position]) for name, _, values in from_path)
        items.append(item)
    return items


def _dictionaries(frame, positions):
    names = [str(name) for name in frame.columns]
    columns = []
    for place in range(len(names)):
        column = frame.iloc[positions, place]
        missing = column.isna()
        values = column.astype(object).tolist()
        columns.append([None if none else value for value, none in zip(values, missing.tolist(), strict=True)])
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _frame(fd, length, rows, columns):
    import numpy
    import pandas

    data = {}
    foreign = None
    for position, (name, kind, array) in enumerate(columns):
        if kind == "foreign":
            if foreign is None:
                foreign = _arrow_table(fd, length, name, array)
            array = _foreign_column(foreign, position, name, array)
        elif kind == "text":
            array = pandas.Series(array, dtype=_text_type())
        elif kind == "arrow_text":
            array = pandas.Series(_text_type().__from_arrow__(_texts(rows, *array)))
        elif kind == "utc":
            array = pandas.Series(array.view("datetime64[ns]")).dt.tz_localize("UTC")
        elif kind == "date":
            array = array.view("datetime64[D]").astype(object)
        elif kind in ("Int64", "UInt64"):
            array = pandas.Series(pandas.array(array, dtype=kind))
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


@functools.cache
def _text_type():
    """Returns the type that this release of pandas has for text; newer ones do not use ``object``."""
    import pandas

    return pandas.Series([""]).dtype


def _texts(count, missing, bits, offsets, characters):
    """Returns the texts of these buffers as an array of Arrow."""
    import pyarrow

    buffers = [buffer if buffer is None else pyarrow.py_buffer(buffer) for buffer in (bits, offsets, characters)]
    return pyarrow.Array.from_buffers(pyarrow.large_string(), count, buffers, missing)


def _instants(pandas, array):
    """Keeps the unit of instants that nanoseconds cannot hold; releases of pandas without other units get objects."""
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
