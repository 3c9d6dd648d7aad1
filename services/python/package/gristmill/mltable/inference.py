"""Types of columns of text: those of the first 200 rows apply to all, by the rules of the job file's tables."""

import re

import numpy
import pandas

WINDOW_ROWS = 200
_NOTATIONS = (frozenset("01"), frozenset("TF"), frozenset("YN"))
_TRUTHS = {"1": True, "true": True, "t": True, "y": True, "0": False, "false": False, "f": False, "n": False}
_INTEGER = re.compile(r"[+-]?[0-9]+")
FLOAT = re.compile(r"[+-]?(\d+\.?\d*(e[+-]?\d+)?|\.\d+(e[+-]?\d+)?|inf|infinity|nan)", re.IGNORECASE | re.ASCII)
_TIME = r"([T ]\d{1,2}:\d{2}(:\d{2}(\.\d{1,9})?)?( ?[AaPp][Mm])?( ?(Z|[+-]\d{2}:?\d{2}))?)?"
_ISO = re.compile(rf"(\d{{4}}-\d{{2}}-\d{{2}}|\d{{4}}/\d{{1,2}}/\d{{1,2}}){_TIME}")
_NUMERIC_DATE = re.compile(rf"(\d{{1,2}})/(\d{{1,2}})/\d{{4}}{_TIME}")


def typed(texts, empty_as_string=False):
    """Returns a Series of texts (``None`` where a row has no value) with the type of its first rows."""
    window = texts.iloc[:WINDOW_ROWS]
    filled = [text.strip() for text in window if text is not None and text.strip()]
    if not filled or (empty_as_string and "" in window.tolist()):
        return untyped(texts, empty_as_string)
    if _is_boolean(filled):
        return _without_missing(_stripped(texts).str.lower().map(_TRUTHS).astype(object), bool)
    if all(map(_INTEGER.fullmatch, filled)) and all(-(2**63) <= int(text) < 2**63 for text in filled):
        return _integers(texts, has_missing=len(filled) != len(window))
    if all(map(FLOAT.fullmatch, filled)):
        return _floats(texts)
    for day_first in (False, True):
        if all(_is_date(text, day_first) for text in filled):
            return dates(_stripped(texts), day_first)
    return untyped(texts, empty_as_string)


def untyped(texts, empty_as_string=False):
    """Returns the texts, with ``None`` for empty ones unless these are values."""
    values = texts.to_numpy(dtype=object, copy=True)
    if not empty_as_string:
        values[[value is not None and not value for value in values]] = None
    return pandas.Series(values, dtype=object)


def dates(texts, day_first=False, formats=None):
    """Returns the texts as instants of UTC, with ``NaT`` for a text that is not an instant."""
    if formats:
        found = pandas.Series(pandas.NaT, index=texts.index, dtype="datetime64[ns]")
        for form in formats:
            parsed = pandas.to_datetime(texts, format=form, errors="coerce", utc=True).dt.tz_localize(None)
            found = found.fillna(parsed.astype("datetime64[ns]"))
        return found
    kinds = [text if isinstance(text, str) and _is_date(text, day_first) else None for text in texts]
    mixed = {"format": "mixed"} if int(pandas.__version__.split(".")[0]) >= 2 else {}
    iso = pandas.Series([text if text and text[4:5] in "-/" else None for text in kinds], dtype=object)
    other = pandas.Series([text if text and text[4:5] not in "-/" else None for text in kinds], dtype=object)
    parsed = pandas.to_datetime(iso, errors="coerce", utc=True, **mixed)
    if other.notna().any():
        parsed = parsed.fillna(pandas.to_datetime(other, errors="coerce", utc=True, dayfirst=day_first, **mixed))
    return parsed.dt.tz_localize(None).astype("datetime64[ns]")


def _is_boolean(filled):
    values = frozenset(filled)
    return any(values <= notation for notation in _NOTATIONS) or all(
        text.lower() in ("true", "false") for text in values
    )


def _is_date(text, day_first):
    if _ISO.fullmatch(text):
        return True
    match = _NUMERIC_DATE.fullmatch(text)
    if match is None:
        return False
    month, day = (int(match[2]), int(match[1])) if day_first else (int(match[1]), int(match[2]))
    return 1 <= month <= 12 and 1 <= day <= 31


def _stripped(texts):
    return pandas.Series([None if text is None else text.strip() for text in texts], dtype=object)


def _integers(texts, has_missing):
    values = []
    for text in texts:
        text = "" if text is None else text.strip()
        if _INTEGER.fullmatch(text):
            values.append(int(text))
        elif FLOAT.fullmatch(text) and numpy.isfinite(float(text)):
            values.append(int(float(text)))
        else:
            values.append(None)
    is_whole = not has_missing and None not in values and all(-(2**63) <= value < 2**63 for value in values)
    return pandas.Series(values, dtype="int64" if is_whole else "float64")


def _floats(texts):
    values = (text.strip() if text is not None else "" for text in texts)
    return pandas.Series([float(text) if FLOAT.fullmatch(text) else numpy.nan for text in values], dtype="float64")


def _without_missing(values, kind):
    missing = values.isna()
    return values.where(~missing, None) if missing.any() else values.astype(kind)
