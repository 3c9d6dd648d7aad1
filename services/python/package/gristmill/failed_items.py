"""Items without a result in a success, and the pieces of the rows between them, as an answer names them."""

from bisect import bisect_left

from gristmill.results import is_frame

ENTRIES_MAX = 256
"""Most entries of one answer."""


def that_do_not_fit(misfits):
    """Returns the entries for rows that do not fit ``result_schema``: ``(item, reason)``."""
    return [_entry(item, "illegal_result", {"category": "RowDoesNotFit", "message": why}) for item, why in misfits]


def that_raised(failures, report):
    """Returns the entries for ``(item, exception)``. ``report`` makes a report of both."""
    return [_entry(item, "run_raised", report(item, error)) for item, error in failures]


def never_handed_back(missing):
    """Returns the entries for items that ``run`` has not handed back, though it has handed back others."""
    message = "run() ended without a result of this item"
    return [_entry(item, "illegal_result", {"category": "NoResult", "message": message}) for item in missing]


def _entry(item, status, error):
    return {"item": item, "items": 1, "status": status, "error": error}


def limited(entries, warnings):
    """Returns the entries in order: one each, or one for neighbours with the same kind of error if there are many.

    Those that have no room are in a warning.
    """
    entries = sorted(entries, key=lambda entry: entry["item"])
    if len(entries) <= ENTRIES_MAX:
        return entries
    ranges = entries[:1]
    for entry in entries[1:]:
        last = ranges[-1]
        if last["item"] + last["items"] == entry["item"] and last["error"]["category"] == entry["error"]["category"]:
            last["items"] += 1
        else:
            ranges.append(entry)
    left = sum(entry["items"] for entry in ranges[ENTRIES_MAX:])
    if left:
        first = ranges[ENTRIES_MAX]
        error = first["error"]
        warnings.append(
            f"{left} more items have failed than the {ENTRIES_MAX} that a mini-batch can name; the first of them is "
            f"item {first['item']} of the mini-batch: {error['category']}: {error['message']}"
        )
    return ranges[:ENTRIES_MAX]


def in_pieces(result, entries, items, rows_of):
    """Returns the bytes and the columns of a result without these items, and its pieces between them.

    A piece is ``(first item, bytes)``. There is none if the parts of the result do not have the same columns.
    ``rows_of`` makes bytes and columns of a part.
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
            payload, names = rows_of(result.iloc[part] if is_frame(result) else list(result[part]))
            pieces.append((start, len(payload)))
            payloads.append(payload)
            if payload:
                columns.append(names)
    if any(names != columns[0] for names in columns):
        return *rows_of(result), []
    return b"".join(payloads), columns[0] if columns else None, pieces
