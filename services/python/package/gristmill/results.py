"""Allowed results of ``run`` and their conversion."""

import sys
from collections.abc import Iterator


class IllegalResult(Exception):
    """The value is not a valid result."""


class ShortResult(Exception):
    """There are fewer results than items, and the job requires one for each."""


ROWS_OF = {
    "pandas": "frame.to_dict('records')",
    "polars": "frame.to_dicts()",
    "pyarrow": "table.to_pylist()",
}
"""How a table of each library becomes a list of rows, for messages."""
PERIOD = "gristmill.period"
"""Key in an output's metadata of pandas: the type of the periods whose texts a column has."""
POSITIONS = "gristmill.positions"
"""Key in a mini-batch's metadata of pandas, for an index that counts rows: it counts ``on`` from the rows of the
mini-batch before, or ``anew`` from 0, as in a frame that the function has created."""
TEXT_CHARACTERS_MAX = 200
"""Maximum length of a quoted text; a script may return a whole document."""


def illegal(mini_batch_id, result):
    """Returns the failure for an invalid result; its text begins as in Azure ML and ends with the type."""
    shown = f" the text {quoted(result)}" if isinstance(result, str) else ""
    return IllegalResult(
        "The run() method in the entry script should return a list or a pandas DataFrame. "
        f"For mini-batch {mini_batch_id} it returned{shown}: {type(result).__name__}"
    )


def quoted(text):
    """Returns a text of a script in quotes, in one line, and shortened if it is long."""
    rest = "…" if len(text) > TEXT_CHARACTERS_MAX else ""
    return repr(str(text)[:TEXT_CHARACTERS_MAX]) + rest


def kind_of(value):
    """Returns the class of a value with its module, as messages name it."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def is_frame(result):
    """Returns whether the value is a DataFrame, without importing pandas."""
    frame_type = getattr(sys.modules.get("pandas"), "DataFrame", None)
    return frame_type is not None and isinstance(result, frame_type)


def accept(result, mini_batch_id):
    """Returns the value as a list, a DataFrame or :class:`ArrowRows`, and a warning or ``None``.

    Arrays, Series and iterators become lists of their elements. Exceptions of an iterator propagate.
    """
    if isinstance(result, (list, ArrowRows)) or is_frame(result):
        return result, None
    if (table := arrow_rows(result)) is not None:
        return table, None
    if isinstance(result, tuple):
        return list(result), None
    series_type = getattr(sys.modules.get("pandas"), "Series", None)
    array_type = getattr(sys.modules.get("numpy"), "ndarray", None)
    if (
        (series_type is not None and isinstance(result, series_type))
        or (array_type is not None and isinstance(result, array_type) and result.ndim > 0)
        or isinstance(result, Iterator)
    ):
        return list(result), made_into_list(result, mini_batch_id)
    raise illegal(mini_batch_id, result)


def made_into_list(result, mini_batch_id):
    """Returns the warning for a result of a kind that Azure ML does not accept."""
    return f"run() returned a {type(result).__name__} for mini-batch {mini_batch_id}; it was made into a list"


def arrow_rows(result):
    """Returns a table of Arrow or Polars as rows, else ``None``. Imports none of their packages."""
    kind = type(result)
    package = kind.__module__.partition(".")[0]
    if package == "pyarrow" and kind.__name__ in ("Table", "RecordBatch"):
        return ArrowRows(result)
    if package == "polars" and kind.__name__ in ("DataFrame", "LazyFrame"):
        return ArrowRows(result if kind.__name__ == "DataFrame" else result.collect())
    return None


class ArrowRows:
    """A result as a table of Arrow, or a frame of Polars."""

    def __init__(self, table):
        self.table = table

    def __len__(self):
        return self.table.shape[0]

    def __getitem__(self, part):
        start, stop, _ = part.indices(len(self))
        return ArrowRows(self.table.slice(start, max(0, stop - start)))


class RowsOfItems(list):
    """A result in which an item may have any number of rows; ``items`` is the number of items that were tried.

    ``positions`` are the items of the rows, in order; ``None``: each item has one row. ``failures`` are the items that
    have no row because of an exception: ``(item, exception)``, in order. ``missing`` are the items that the script has
    never handed back.
    """

    def __init__(self, items):
        super().__init__()
        self.items = items
        self.positions = None
        self.failures = []
        self.missing = ()


def compare_lengths(mini_batch, result, items, strict):
    """Returns the number of results that count, for a result that is longer or shorter than its input.

    A script may return several rows for an item. All of them are kept, and the items count.
    """
    returned = result.items if type(result) is RowsOfItems else len(result)
    if returned < items and strict:
        raise ShortResult(
            f"run() returned {returned} results for the {items} items of mini-batch {mini_batch['mini_batch']}, "
            "and strict_results asks for one each"
        )
    return returned
