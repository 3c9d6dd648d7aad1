"""What ``run`` may return, and what it is taken for."""

import sys
from collections.abc import Iterator


class IllegalResult(Exception):
    """The value is no result."""


def illegal(mini_batch_id, result):
    """The failure of a value that is no result; the text begins as in the original and ends with the type."""
    return IllegalResult(
        "The run() method in the entry script should return a list or a pandas DataFrame. "
        f"For mini-batch {mini_batch_id} it returned: {type(result).__name__}"
    )


def is_frame(result):
    """Whether the value is a DataFrame. pandas is not imported for the question."""
    frame_type = getattr(sys.modules.get("pandas"), "DataFrame", None)
    return frame_type is not None and isinstance(result, frame_type)


def accept(result, mini_batch_id):
    """The value as a list or a DataFrame, and a warning or ``None``.

    Arrays, Series and iterators are taken for the list of their elements. May raise what an iterator raises.
    """
    if isinstance(result, list) or is_frame(result):
        return result, None
    if isinstance(result, tuple):
        return list(result), None
    series_type = getattr(sys.modules.get("pandas"), "Series", None)
    array_type = getattr(sys.modules.get("numpy"), "ndarray", None)
    if (
        (series_type is not None and isinstance(result, series_type))
        or (array_type is not None and isinstance(result, array_type) and result.ndim > 0)
        or isinstance(result, Iterator)
    ):
        warning = f"run() returned a {type(result).__name__} for mini-batch {mini_batch_id}; it was made into a list"
        return list(result), warning
    raise illegal(mini_batch_id, result)
