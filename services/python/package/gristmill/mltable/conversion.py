"""``convert_column_types``: a value that cannot be converted is missing, as in Azure ML."""

import math

import pandas

from gristmill.mltable.inference import FLOAT, dates

_TRUTHS = {"1": True, "0": False, "T": True, "F": False, "Y": True, "N": False}
_WORDS = {"true": True, "false": False}


def converted(column, kind, details):
    """Returns a column as another type."""
    if kind == "datetime":
        return _instants(column, details["formats"])
    convert = {"int": _integer, "float": _float, "string": _string, "boolean": _boolean(details)}[kind]
    values = [None if _is_missing(value) else convert(value) for value in column.astype(object)]
    found = [value for value in values if value is not None]
    has_missing = len(found) != len(values)
    if kind == "int" and found:
        return pandas.Series(values, dtype="float64" if has_missing else "int64", index=column.index)
    if kind == "float" and found:
        return pandas.Series(values, dtype="float64", index=column.index)
    if kind == "boolean" and found and not has_missing:
        return pandas.Series(values, dtype=bool, index=column.index)
    return pandas.Series(values, dtype=object, index=column.index)


def _is_missing(value):
    return value is None or value is pandas.NaT or (isinstance(value, float) and math.isnan(value))


def _integer(value):
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = _float(value)
    if number is None or math.isnan(number):
        return None
    return int(number) if abs(number) < 2.0**63 else 2**63 - 1 if number > 0 else -(2**63)


def _float(value):
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    # Python also reads `1_000` and the digits of other alphabets, which are texts in tables.
    return float(value) if isinstance(value, str) and FLOAT.fullmatch(value.strip()) else None


def _string(value):
    if isinstance(value, pandas.Timestamp):
        text = value.isoformat()
        return f"{text.removesuffix('000') if '.' in text else text}+00:00"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _boolean(details):
    truths = dict.fromkeys(map(str, details.get("true_values") or ()), True)
    truths.update(dict.fromkeys(map(str, details.get("false_values") or ()), False))
    otherwise = {"true": True, "false": False}.get(str(details.get("mismatch_as")).lower())

    def convert(value):
        if isinstance(value, (bool, int, float)):
            return bool(value)
        text = str(value).strip()
        if truths:
            return truths.get(text, otherwise)
        return _TRUTHS.get(text, _WORDS.get(text.lower(), otherwise))

    return convert


def _instants(column, formats):
    if pandas.api.types.is_datetime64_any_dtype(column.dtype):
        return column
    texts = pandas.Series([None if _is_missing(value) else str(value) for value in column], dtype=object)
    found = dates(texts, formats=formats)
    found.index = column.index
    return found
