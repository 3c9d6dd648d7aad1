"""Checks of rows against the ``result_schema`` of the job.

A row is checked in the form that it has in JSON lines. Rows that do not fit are taken out of the result, and their
items are rejected. With columns, all other rows get these columns in this order, which makes one table of all
mini-batches.
"""

import json

from gristmill import _native
from gristmill.delimited import column_names
from gristmill.results import ArrowRows, IllegalResult, RowsOfItems, is_frame
from gristmill.rows import JsonLines, json_line

MISFITS_MAX = 256
"""Most entries of one answer."""


class RowChecks:
    """The checks of one process. Only jobs with a schema have them."""

    def __init__(self, schema, output_format):
        self._checker = _native.RowChecker(json.dumps(schema))
        columns = schema.get("columns")
        self._names = None if columns is None else [column["name"] for column in columns]
        # The lines of `text` are those of the script.
        self._is_text = output_format == "text"
        self._is_parquet = output_format == "parquet"

    def sift(self, result, items):
        """Returns the result without the rows that do not fit, and ``(item, reason)`` of those, in order."""
        if type(result) is ArrowRows:
            kept, misfits = self._sift_table(result)
        elif is_frame(result):
            kept, misfits = self._sift_frame(result)
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
        if self._names is None or self._is_text:
            rows = result
        if misfits:
            positions = getattr(result, "positions", None) or range(len(result))
            bad = {}
            for row, reason in misfits:
                bad.setdefault(positions[row], reason)
            # An item is rejected with all its rows.
            rows = [row for row, position in zip(rows, positions, strict=True) if position not in bad]
            misfits = list(bad.items())
        if self._names is not None and not self._is_text:
            rows = [self._in_order(row) for row in rows]
            if self._is_parquet:
                self._unify(rows)
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

    def _unify(self, rows):
        """Turns instants and days into text in columns that hold texts too. Parquet takes one type for a column."""
        for name in self._names:
            if len({isinstance(row[name], str) for row in rows if row[name] is not None}) == 2:
                for row in rows:
                    if hasattr(row[name], "isoformat"):
                        row[name] = row[name].isoformat()

    def _sift_frame(self, frame):
        misfits = self._misfits_of(frame)
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
        return frame, misfits

    def _sift_table(self, rows):
        frame = rows.table.to_pandas()
        misfits = self._misfits_of(frame)
        if not misfits and (self._names is None or rows.table.column_names == self._names):
            return rows, misfits
        return self._sift_frame(frame)

    def _misfits_of(self, frame):
        names = column_names(frame)
        if len(set(names)) != len(names):
            raise IllegalResult(
                "result_schema needs unique column names, and the DataFrame that run() returned has duplicates"
            )
        lines, _ = JsonLines().of_frame(frame)
        return self._checker.misfits(lines)


def for_answer(misfits, warnings):
    """Returns what an answer says about rows that do not fit: one entry each, or one for neighbours if there are many.
    Those that have no room are in a warning."""
    entries = [{"item": item, "items": 1, "message": reason} for item, reason in misfits]
    if len(entries) <= MISFITS_MAX:
        return entries
    ranges = entries[:1]
    for entry in entries[1:]:
        last = ranges[-1]
        if last["item"] + last["items"] == entry["item"]:
            last["items"] += 1
        else:
            ranges.append(entry)
    left = sum(entry["items"] for entry in ranges[MISFITS_MAX:])
    if left:
        first = ranges[MISFITS_MAX]
        warnings.append(
            f"{left} more items have rows that do not fit result_schema; the first is item {first['item']} of the "
            f"mini-batch: {first['message']}"
        )
    return ranges[:MISFITS_MAX]
