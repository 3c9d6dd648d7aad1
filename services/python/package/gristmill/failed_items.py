"""Items without a result in a success, and the pieces of the rows between them, in the form of an answer.

A script with ``run_item`` need not run again in ranges of its items, because its last answer names the failed ones.
"""

from bisect import bisect_left

from gristmill.results import ArrowRows, is_frame

NAMED_MAX = 10_000
"""Maximum number of items with an entry each, if they failed together."""


def named(failures, misfits, missing, only_kept):
    """Returns the entries for all items without a result, in their order. ``failures``: ``(item, report)`` of those
    that raised. ``only_kept``: those that are ``missing`` failed with their attempt."""
    entries = [_entry(item, "run_raised", report) for item, report in failures] + that_do_not_fit(misfits)
    entries += without_result(missing) if only_kept else never_handed_back(missing)
    return sorted(entries, key=lambda entry: entry["item"])


def that_do_not_fit(misfits):
    """Returns the entries for rows that do not fit ``result_schema``: ``(item, reason)``."""
    error = "RowDoesNotFit"
    return [_entry(item, "illegal_result", {"category": error, "message": reason}) for item, reason in misfits]


def never_handed_back(missing):
    """Returns the entries for items that ``run`` has not handed back, though it has handed back others."""
    message = "run() ended without a result of this item"
    return [_entry(item, "illegal_result", {"category": "NoResult", "message": message}) for item in missing]


def without_result(missing):
    """Returns the entries for items that failed with their attempt, whose error the agent knows. Each item has a
    separate entry, unless there are many."""
    error = {"category": "", "message": ""}
    if len(missing) <= NAMED_MAX:
        return [_entry(item, "run_raised", error) for item in missing]
    entries = []
    for item in missing:
        if entries and entries[-1]["item"] + entries[-1]["items"] == item:
            entries[-1]["items"] += 1
        else:
            entries.append(_entry(item, "run_raised", error))
    return entries


def _entry(item, status, error):
    return {"item": item, "items": 1, "status": status, "error": error}


def in_pieces(result, entries, items, rows_of):
    """Returns the bytes and the columns of a result without these items, and its pieces between them.

    A piece is ``(first item, bytes)``. There are no pieces if the parts of the result have different columns.
    ``rows_of`` returns the bytes and columns of a part.
    """
    positions = getattr(result, "positions", None)
    if positions is None:
        named = set()
        for entry in entries:
            named.update(range(entry["item"], entry["item"] + entry["items"]))
        positions = [item for item in range(items) if item not in named]
    if len(positions) != len(result):
        return *rows_of(result), []
    starts = [0, *(entry["item"] + entry["items"] for entry in entries)]
    ends = [*(entry["item"] for entry in entries), items]
    pieces, payloads, columns = [], [], []
    for start, end in zip(starts, ends, strict=True):
        if start < end:
            part = slice(bisect_left(positions, start), bisect_left(positions, end))
            payload, names = rows_of(_part_of(result, part))
            pieces.append((start, len(payload)))
            payloads.append(payload)
            if payload:
                columns.append(names)
    if any(names != columns[0] for names in columns):
        return *rows_of(result), []
    return b"".join(payloads), columns[0] if columns else None, pieces


def _part_of(result, part):
    if is_frame(result):
        return result.iloc[part]
    return result[part] if isinstance(result, ArrowRows) else list(result[part])
