"""Checks of rows against the ``result_schema`` of the job.

A row is checked in the form that it has in JSON lines. Rows that do not fit are taken out of the result, and their
items are rejected. With columns, all other rows get these columns in this order, which makes one table of all
mini-batches. Its columns of integers hold integers, also where a script returns 3.0. A column of Parquet has one type
for all mini-batches, so its columns of strings hold texts, as JSON lines have them, and no bytes.
"""

import json
import math

from gristmill import _native
from gristmill.delimited import column_names
from gristmill.missing import is_missing
from gristmill.results import ArrowRows, IllegalResult, RowsOfItems, is_frame
from gristmill.rows import JsonLines, is_plain, json_default, json_line, python_value

BINARY = (bytes, bytearray, memoryview)


class RowChecks:
    """The checks of one process. Only jobs with a schema have them."""

    def __init__(self, schema, output_format):
        self._checker = _native.RowChecker(json.dumps(schema))
        columns = schema.get("columns")
        self._names = None if columns is None else [column["name"] for column in columns]
        self._integers = [column["name"] for column in columns or () if column["type"] == "integer"]
        # The lines of `text` are those of the script.
        self._is_text = output_format == "text"
        self._is_parquet = output_format == "parquet"
        types = {column["name"]: column["type"] for column in columns or ()} if self._is_parquet else {}
        self._strings = [name for name, kind in types.items() if kind == "string"]
        self._anys = [name for name, kind in types.items() if kind == "any"]
        self._numbers = [name for name, kind in types.items() if kind == "number"]

    def sift(self, result, items):
        """Returns the result without the rows that do not fit, and ``(item, reason)`` of those, in order.

        Rows of a list keep their ``positions``, if they have any.
        """
        if type(result) is ArrowRows:
            kept, misfits = self._sift_table(result)
        elif is_frame(result):
            kept, misfits = self._sift_frame(result, self._misfits_of(result))
        else:
            kept, misfits = self._sift_list(result)
        if misfits and len(result) != items and type(result) is not RowsOfItems:
            row, reason = misfits[0]
            raise IllegalResult(
                f"row {row} of the result does not fit result_schema ({reason}), and which item it belongs to is "
                f"unknown: run() returned {len(result)} results for {items} items"
            )
        return kept, misfits

    def _sift_list(self, result):
        rows = result if self._names is None else [self._as_object(row) for row in result]
        misfits = self._checker.misfits(b"".join([json_line(row) for row in rows]))
        if self._strings or self._numbers:
            bad = {row for row, _ in misfits}
            rows = [row if position in bad else self._in_order(row) for position, row in enumerate(rows)]

            def cells(name):
                return [None if position in bad else row[name] for position, row in enumerate(rows)]

            misfits = self._without_form(cells, misfits)
        if self._names is None or self._is_text:
            rows = result
        positions = getattr(result, "positions", None)
        if misfits:
            if positions is None:
                positions = range(len(result))
            bad = {}
            for row, reason in misfits:
                bad.setdefault(positions[row], reason)
            # An item is rejected with all its rows.
            kept = [(row, position) for row, position in zip(rows, positions, strict=True) if position not in bad]
            rows, positions = [row for row, _ in kept], [position for _, position in kept]
            misfits = list(bad.items())
        if self._names is not None and not self._is_text:
            rows = [self._in_order(row) for row in rows]
            for name in self._integers:
                for position, row in enumerate(rows):
                    if type(row[name]) is not int and row[name] is not None:
                        rows[position] = {**row, name: _as_integer(row[name])}
            if self._is_parquet:
                for name in self._strings:
                    for row in rows:
                        row[name] = _as_text(row[name])
                for name in self._anys:
                    if len({_form_of(row[name]) for row in rows if not is_missing(row[name])}) > 1:
                        for row in rows:
                            row[name] = _in_words(row[name])
                self._unify(rows)
        if positions is not None and rows is not result:
            checked = RowsOfItems(len(positions))
            checked.extend(rows)
            checked.positions = positions
            rows = checked
        return rows, misfits

    def _as_object(self, row):
        """Returns a row of a list by the names of its columns, as it is written to the output."""
        if isinstance(row, dict):
            return row
        if isinstance(row, (list, tuple)):
            # Of another length, it does not fit.
            return dict(zip(self._names, row, strict=True)) if len(row) == len(self._names) else row
        return {"value": row}

    def _in_order(self, row):
        names = self._names
        if list(row) == names and not self._is_parquet:
            return row
        if any(type(name) is not str for name in row):
            row = {str(name): value for name, value in row.items()}
        return {name: row.get(name) for name in names}

    def _without_form(self, cells, misfits):
        """Adds the rows with a value that no column of Parquet of its type can hold, though JSON lines can."""
        found = dict(misfits)
        for name in self._strings:
            values = cells(name)
            if any(issubclass(kind, BINARY) for kind in {*map(type, values)}):
                for row, value in enumerate(values):
                    if isinstance(value, BINARY):
                        found.setdefault(row, f"{name}: expected string, got {type(value).__name__}")
        for name in self._numbers:
            values = cells(name)
            if {*map(type, values)} <= {float, type(None)}:
                continue
            for row, value in enumerate(map(python_value, values)):
                if isinstance(value, int) and not -(2**63) <= value < 2**63:
                    found.setdefault(row, f"{name}: expected a number of 64 bits, got {str(value)[:80]}")
        return sorted(found.items())

    def _unify(self, rows):
        """Turns instants and days into text in columns that hold texts too. Parquet takes one type for a column."""
        for name in self._names:
            if len({isinstance(row[name], str) for row in rows if row[name] is not None}) == 2:
                for row in rows:
                    if is_missing(row[name]):
                        row[name] = None
                    elif hasattr(row[name], "isoformat"):
                        row[name] = row[name].isoformat()

    def _sift_frame(self, frame, misfits):
        if misfits:
            if len(misfits) == len(frame):
                return [], misfits
            bad = {row for row, _ in misfits}
            frame = frame.iloc[[row for row in range(len(frame)) if row not in bad]]
        names = column_names(frame)
        if self._names is not None and names != self._names:
            absent = [name for name in self._names if name not in names]
            for name in absent:
                frame = frame.assign(**{name: None})
            positions = {name: position for position, name in enumerate([*names, *absent])}
            frame = frame.iloc[:, [positions[name] for name in self._names]]
        return self._with_texts(self._with_integers(frame)), misfits

    def _with_texts(self, frame):
        names = column_names(frame)
        replaced = {}
        for name in self._strings:
            column = frame.iloc[:, names.index(name)]
            if _may_hold_anything(column) and not {*map(type, column)} <= {str, type(None)}:
                replaced[names.index(name)] = [_as_text(value) for value in column]
        if replaced:
            # The frame is the script's.
            frame = frame.copy(deep=False)
            for position, texts in replaced.items():
                frame[frame.columns[position]] = _objects(texts, frame.index)
        return frame

    def _with_integers(self, frame):
        if self._is_text or not self._integers:
            return frame
        names = column_names(frame)
        positions = map(names.index, self._integers)
        replaced = {position: _integers_of(frame.iloc[:, position]) for position in positions}
        if any(column is not None for column in replaced.values()):
            # The frame is the script's.
            frame = frame.copy(deep=False)
            for position, column in replaced.items():
                if column is not None:
                    frame[frame.columns[position]] = column
        return frame

    def _sift_table(self, rows):
        import pyarrow

        frame = rows.table.to_pandas()
        misfits = self._misfits_of(frame)
        is_in_order = self._names is None or rows.table.column_names == self._names
        has_texts = all(is_plain(pyarrow.types, rows.table.schema.field(name).type) for name in self._strings_of(frame))
        is_in_order = is_in_order and has_texts
        if misfits or not is_in_order or not (self._is_parquet or self._is_text or not self._integers):
            return self._sift_frame(frame, misfits)
        if self._is_parquet:
            for name in self._integers:
                rows.table = _with_arrow_integers(rows.table, name)
        return rows, misfits

    def _strings_of(self, frame):
        return [name for name in self._strings if name in frame.columns]

    def _misfits_of(self, frame):
        names = column_names(frame)
        if len(set(names)) != len(names):
            raise IllegalResult(
                "result_schema needs unique column names, and the DataFrame that run() returned has duplicates"
            )
        lines, _ = JsonLines().of_frame(frame)
        misfits = self._checker.misfits(lines)

        def cells(name):
            column = frame.iloc[:, names.index(name)] if name in names else ()
            return column if len(column) and _may_hold_anything(column) else ()

        return self._without_form(cells, misfits) if self._strings or self._numbers else misfits


def _may_hold_anything(column):
    """Returns whether a column of a frame may hold values of other types than text, numbers and instants."""
    import pandas

    dtype = column.dtype
    return not isinstance(dtype, (pandas.StringDtype, pandas.DatetimeTZDtype)) and dtype.kind not in "Miufb"


def _as_text(value):
    """Returns a value that is a string in JSON lines as this text, and a missing value as ``None``."""
    while value is not None and not isinstance(value, str):
        value = None if is_missing(value) else json_default(value)
    return value


def _form_of(value):
    """Returns which of the forms of a value of ``any`` it has that no column of Parquet holds together."""
    forms = (("binary", BINARY), ("list", (list, tuple)), ("object", dict))
    return next((form for form, types in forms if isinstance(value, types)), "text or number")


def _in_words(value):
    """Returns a value of ``any`` as text, as the reducer writes values of mini-batches that have no common type."""
    if isinstance(value, BINARY):
        value = bytes(value)
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return value if isinstance(value, str) or is_missing(value) else json_line(value).decode().strip('\n"')


def _objects(values, index):
    import pandas

    return pandas.Series(values, index=index, dtype=object)


def _as_integer(number):
    """Returns a number that fits a column of integers as an ``int``. NaN and infinity are null in JSON lines."""
    return None if is_missing(number) or not math.isfinite(number) else int(number)


def _integers_of(column):
    """Returns a column of integers that holds floating-point numbers as integers, or ``None`` for any other."""
    import numpy
    import pandas

    if column.dtype == object:
        if pandas.api.types.infer_dtype(column, skipna=True) not in ("floating", "mixed-integer-float"):
            return None
        return pandas.Series([_as_integer(number) for number in column], index=column.index, dtype=object)
    if column.dtype.kind != "f":
        return None
    if not isinstance(column.dtype, numpy.dtype):
        return column.astype("Int64")
    numbers = column.to_numpy()
    known = numpy.isfinite(numbers)
    if known.all():
        return pandas.Series(numbers.astype(numpy.int64), index=column.index)
    integers = numpy.where(known, numbers, 0).astype(numpy.int64).astype(object)
    integers[~known] = None
    return pandas.Series(integers, index=column.index, dtype=object)


def _with_arrow_integers(table, name):
    import pyarrow
    import pyarrow.compute

    position = table.column_names.index(name)
    numbers = table.column(position)
    if not pyarrow.types.is_floating(numbers.type):
        return table
    nothing = pyarrow.scalar(None, numbers.type)
    integers = pyarrow.compute.if_else(pyarrow.compute.is_finite(numbers), numbers, nothing).cast(pyarrow.int64())
    return table.set_column(position, name, integers)
