"""Values that stand for a missing one, as in ``pandas.isna``, without importing pandas."""

_PRESENT = {str, int, bool, bytes, list, tuple, dict}


def is_missing(value):
    """Returns whether a value of a row is ``None``, NaN of any type, ``pandas.NaT`` or ``pandas.NA``."""
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


def without_missing(values):
    """Returns a list of the values, with ``None`` for each missing one."""
    return [None if is_missing(value) else value for value in values]
