"""Values that stand for a missing one, and integers beside them."""

EXACT_MAX = 2**53
"""Every whole number up to this one is exact as a ``float64``."""
NULLABLE = {"int64": "Int64", "uint64": "UInt64", "bool": "boolean"}
"""Types without missing values, and those of pandas with them."""
_PRESENT = {str, int, bool, bytes, list, tuple, dict}


def is_missing(value):
    """Returns whether a value of a row is ``None``, NaN of any type, ``pandas.NaT`` or ``pandas.NA``: like
    ``pandas.isna``, but without importing pandas."""
    kind = type(value)
    if value is None or kind in _PRESENT:
        return value is None
    if isinstance(value, (float, complex)):
        return value != value
    if kind.__name__ in ("NaTType", "NAType"):
        return kind.__module__.partition(".")[0] == "pandas"
    if kind.__name__ == "Decimal":
        return value.is_nan()
    # A scalar of NumPy. Its NaT is an instant.
    return kind.__module__ == "numpy" and getattr(value, "shape", None) == () and bool(value != value)


def exact_integers(column):
    """Returns integers of Arrow as a nullable array of pandas if floating-point numbers, which pandas uses for columns
    with missing values, would round one of them, else ``None``."""
    import pandas
    import pyarrow.compute

    ends = pyarrow.compute.min_max(column).as_py()
    if max(abs(ends["min"] or 0), abs(ends["max"] or 0)) <= EXACT_MAX:
        return None
    dtype = pandas.UInt64Dtype() if pyarrow.types.is_unsigned_integer(column.type) else pandas.Int64Dtype()
    return dtype.__from_arrow__(column)
