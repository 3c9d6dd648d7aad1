"""Columns of a DataFrame for the extension: ``(kind, array)``, without copies where possible."""

import numpy
import pandas


def native_columns(frame):
    """Returns one pair per column. A column that the extension does not support has the kind ``None``."""
    return [_native_column(array) for array in _column_arrays(frame)]


def _column_arrays(frame):
    # pandas' own iterator costs a fraction of `iloc`; it has existed under this name since 1.2.
    iterate = getattr(frame, "_iter_column_arrays", None)
    if iterate is not None:
        return iterate()
    return (frame.iloc[:, position].array for position in range(frame.shape[1]))


def _native_column(array):
    dtype = array.dtype
    if isinstance(dtype, numpy.dtype):
        return _numpy_column(numpy.asarray(array), dtype)
    if isinstance(dtype, pandas.StringDtype):
        return _string_column(array)
    return None, None


def _numpy_column(array, dtype):
    if not dtype.isnative:
        return None, None
    if not (array.flags.c_contiguous and array.flags.aligned):
        array = array.copy()
    kind = dtype.kind
    if kind in "iuO":
        return "plain", array
    if kind == "f" and dtype.itemsize in (4, 8):
        return "plain", array
    if kind == "b":
        return "bool", array.view(numpy.uint8)
    if kind == "M":
        unit, count = numpy.datetime_data(dtype)
        if count == 1 and unit in ("s", "ms", "us", "ns"):
            return f"datetime64[{unit}]", array.view(numpy.int64)
    return None, None


def _string_column(array):
    to_arrow = getattr(array, "__arrow_array__", None)
    if to_arrow is None or getattr(array.dtype, "storage", None) == "python":
        return "plain", numpy.asarray(array, dtype=object)
    strings = to_arrow()
    if hasattr(strings, "chunks"):
        strings = strings.chunk(0) if strings.num_chunks == 1 else strings.combine_chunks()
    width = {"string": 4, "large_string": 8}.get(str(strings.type))
    if width is None or hasattr(strings, "chunks"):
        return "plain", numpy.asarray(array, dtype=object)
    return "utf8", ArrowStrings(strings, width)


class ArrowStrings(tuple):
    """Holds the addresses of an Arrow array's buffers, and keeps the array alive."""

    def __new__(cls, strings, width):
        validity, offsets, data = strings.buffers()
        addresses = (
            validity.address if validity is not None and strings.null_count else 0,
            offsets.address,
            width,
            data.address if data is not None else 0,
            data.size if data is not None else 0,
            strings.offset,
            len(strings),
        )
        instance = super().__new__(cls, addresses)
        instance.strings = strings
        return instance
