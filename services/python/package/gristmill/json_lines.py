"""Values and rows as JSON.

``result_schema`` checks rows in this form, and a value that no column holds, such as a deeply nested one, is written in
it.
"""

import json
import math
import re

from gristmill import _native
from gristmill.delimited import column_names
from gristmill.errors import one_line
from gristmill.missing import is_missing
from gristmill.results import ROWS_OF, IllegalResult, kind_of


class Unwritable(Exception):
    """JSON has no form for the value, and its text is meaningless or incomplete."""


ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def json_default(value):
    """Converts values that ``json`` does not support: NumPy's to Python's, instants to ISO form, missing ones to
    ``None``, others to their text. Refuses an object without a text of its own, such as a function, and a DataFrame,
    whose text leaves out most rows."""
    convert = getattr(value, "tolist", None)
    if callable(convert):
        return convert()
    convert = getattr(value, "isoformat", None)
    if callable(convert):
        text = convert()
        return None if text == "NaT" else text
    if is_missing(value):
        return None
    if _is_frame_of_any_library(value):
        raise Unwritable(value)
    text = str(value)
    if type(value).__str__ is object.__str__ and (text.startswith("<") or ADDRESS.search(text)):
        raise Unwritable(value)
    return text


def _is_frame_of_any_library(value):
    return any(kind.__name__ in ("DataFrame", "LazyFrame") for kind in type(value).__mro__)


def without_nan(value):
    """Returns the value with ``None`` for every number that JSON cannot represent."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    if hasattr(value, "tolist"):
        return without_nan(value.tolist())
    return value


def json_line(value):
    try:
        try:
            line = json.dumps(value, default=json_default, ensure_ascii=False, allow_nan=False)
        except ValueError:
            line = json.dumps(without_nan(value), default=json_default, ensure_ascii=False)
    except Unwritable as error:
        raise illegal_value(value, error.args[0]) from None
    try:
        return line.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(without_nan(value), default=json_default).encode() + b"\n"


def illegal_value(rows, unwritable):
    """Returns the failure for a row, or one of several rows, that holds a value that no file can hold."""
    field = _field_of(rows, unwritable)
    row = "a row"
    if isinstance(rows, list) and field:
        # The first index is the number of the row.
        number, field = re.fullmatch(r"\[(\d+)\](.*)", field, re.DOTALL).groups()
        row = f"row {number}"
    name = kind_of(unwritable)
    if _is_frame_of_any_library(unwritable):
        where = f"in the field {field.removeprefix('.')} of {row}" if field else f"as {row}"
        rows_of = ROWS_OF.get(name.partition(".")[0], "the frame")
        return IllegalResult(
            one_line(
                f"run() returned a {name} {where}, and a row holds no table: return all rows as one table, or as a "
                f"list of rows of plain values, such as {rows_of}"
            )
        )
    where = f"in the field {field.removeprefix('.')} of a row" if field else "as a row"
    return IllegalResult(
        one_line(
            f"run() returned a {name} {where}, which has no form in a file: return text, numbers, lists and "
            "dictionaries of them, or an object with a text (__str__) of its own"
        )
    )


def _field_of(value, wanted):
    """Returns the place of an object in a row, such as ``.scores[0].source``; an empty text if it is the row, and
    ``None`` if it is in none of the row's lists and dictionaries."""
    if value is wanted:
        return ""
    if isinstance(value, dict):
        parts = ((f".{key}", item) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        parts = ((f"[{position}]", item) for position, item in enumerate(value))
    else:
        return None
    for part, item in parts:
        below = _field_of(item, wanted)
        if below is not None:
            return part + below
    return None


def lines_of_frame(frame):
    """Returns the rows of a frame as JSON, one object per line."""
    from gristmill.frame_cells import native_columns

    names = column_names(frame)
    columns = native_columns(frame)
    text = None
    if all(kind is not None for kind, _ in columns):
        text = _native.format_json_lines(names, columns, len(frame))
    if text is None:
        values = frame.astype(object).where(frame.notna(), None)
        rows = values.itertuples(index=False, name=None)
        text = b"".join([json_line(dict(zip(names, row, strict=True))) for row in rows])
    return text


def python_value(value):
    is_scalar = hasattr(value, "item") and getattr(value, "shape", None) == ()
    return value.item() if is_scalar else value
