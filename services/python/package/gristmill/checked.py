"""Checks of rows against the ``result_schema`` of the job.

A row is checked in the form that it has in JSON lines. Rows that do not fit are removed from the result, and their
items are rejected. With columns, all other rows get these columns in this order, and the reducer gives the columns the
types that the schema declares. Columns of strings hold texts, as JSON lines have them, and no bytes.
"""

import json

from gristmill import _native
from gristmill.delimited import column_names
from gristmill.json_lines import json_default, json_line, lines_of_frame, python_value
from gristmill.missing import is_missing
from gristmill.results import ArrowRows, IllegalResult, RowsOfItems, is_frame
from gristmill.rows import arrow_of

BINARY = (bytes, bytearray, memoryview)


class RowChecks:
    """The checks of one process. Only jobs with a schema have them."""

    def __init__(self, schema, output_format):
        self._checker = _native.RowChecker(json.dumps(schema))
        columns = schema.get("columns")
        self._names = None if columns is None else [column["name"] for column in columns]
        # In `text`, lines stay as the script returns them.
        self._is_text = output_format == "text"
        types = {} if self._is_text else {column["name"]: column["type"] for column in columns or ()}
        self._strings = [name for name, kind in types.items() if kind == "string"]
        # JSON lines have a form for a number of any size.
        self._numbers = [name for name, kind in types.items() if kind == "number" and output_format != "jsonl"]

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
            for name in self._strings:
                for row in rows:
                    row[name] = _as_text(row[name])
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
            # A row of another length does not fit.
            return dict(zip(self._names, row, strict=True)) if len(row) == len(self._names) else row
        return {"value": row}

    def _in_order(self, row):
        names = self._names
        if any(type(name) is not str for name in row):
            row = {str(name): value for name, value in row.items()}
        return {name: row.get(name) for name in names}

    def _without_form(self, cells, misfits):
        """Adds the rows with a value that no column of its type can hold, though JSON lines can."""
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
        return self._with_texts(frame), misfits

    def _with_texts(self, frame):
        names = column_names(frame)
        replaced = {}
        for name in self._strings:
            column = frame.iloc[:, names.index(name)]
            if _may_hold_anything(column) and not {*map(type, column)} <= {str, type(None)}:
                replaced[names.index(name)] = [_as_text(value) for value in column]
        if replaced:
            import pandas

            # The frame belongs to the script.
            frame = frame.copy(deep=False)
            for position, texts in replaced.items():
                frame[frame.columns[position]] = pandas.Series(texts, frame.index, dtype=object)
        return frame

    def _sift_table(self, rows):
        table = arrow_of(rows.table)
        misfits = self._misfits_of(table.to_pandas())
        if misfits:
            bad = {row for row, _ in misfits}
            if len(bad) == len(table):
                return [], misfits
            table = table.take([row for row in range(len(table)) if row not in bad])
        if self._names is not None and table.column_names != self._names:
            import pyarrow

            absent = pyarrow.nulls(len(table))
            columns = [table.column(name) if name in table.column_names else absent for name in self._names]
            table = pyarrow.table(columns, names=self._names)
        return ArrowRows(table), misfits

    def _misfits_of(self, frame):
        names = column_names(frame)
        if len(set(names)) != len(names):
            raise IllegalResult(
                "result_schema needs unique column names, and the DataFrame that run() returned has duplicates"
            )
        misfits = self._checker.misfits(lines_of_frame(frame))

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
