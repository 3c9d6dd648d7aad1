"""Guesses the item that ``run`` was working on when it raised, from the variables of its frames.

The engine runs that item alone, before it divides the others: a wrong guess costs two runs of a mini-batch.
"""

import os
import sys
from collections import deque
from pathlib import PurePath

from gristmill.errors import is_own_frame
from gristmill.results import is_frame

FRAMES_MAX = 50
"""Number of innermost frames that are examined: a recursion may have a thousand."""


def suspect_of(error, argument):
    """Returns the position of the item in the argument of ``run``, or ``None``.

    The innermost frame with a variable that belongs to an item decides. If it has several, the last item counts: the
    others may be left over.
    """
    if argument is None or len(argument) < 2:
        return None
    entries = deque(maxlen=FRAMES_MAX)
    entry = error.__traceback__
    while entry is not None:
        if not is_own_frame(entry):
            entries.append(entry.tb_frame)
        entry = entry.tb_next
    frames = [list(frame.f_locals.values()) for frame in entries]
    items = _Items(argument, [value for variables in frames for value in variables])
    for variables in reversed(frames):
        known = [position for value in variables if (position := items.find(value)) is not None]
        if known:
            return max(known)
    return None


class _Items:
    """The items of the argument, and the lists of as many elements that a script may have made from them."""

    def __init__(self, argument, variables):
        self._argument = argument
        self._count = len(argument)
        self._variables = variables
        self._is_table = not isinstance(argument, list)
        self._names = getattr(argument, "column_names", None) or getattr(argument, "columns", ())
        self._paths = None
        self._elements = None

    def find(self, value):
        """Returns the position of the item to which a value belongs, or ``None``."""
        try:
            return None if isinstance(value, (int, type(None))) else self._position_of(value)
        except Exception:
            # Comparing objects of user code may run any code.
            return None

    def _position_of(self, value):
        if not self._is_table and isinstance(value, (str, PurePath)):
            if self._paths is None:
                self._paths = {path: position for position, path in reversed(list(enumerate(self._argument)))}
            return self._paths.get(os.fspath(value))
        if self._is_table:
            if isinstance(value, tuple) and type(value).__name__ == "Pandas":
                return self._of_label(getattr(value, "Index", None))
            if _is_series(value):
                is_row = len(value) > 0 and value.index[0] in self._names
                return self._of_label(value.name) if is_row else None
            if type(value) is dict:
                return self._of_record(value)
        return self._of_element(value)

    def _of_label(self, label):
        """Returns the only row with a label of the index; without an index, labels are positions."""
        index = getattr(self._argument, "index", None)
        position = label if index is None or callable(index) else index.get_loc(label)
        return position if isinstance(position, int) and 0 <= position < self._count else None

    def _of_record(self, record):
        """Returns the first row with these values."""
        import numpy

        rows = None
        for name, value in record.items():
            # Values of other types may not be comparable, and NaN is not equal to itself.
            if name not in self._names or not isinstance(value, (str, int, float)) or value != value:
                continue
            column = self._argument[name].to_numpy()
            rows = numpy.flatnonzero(column == value) if rows is None else rows[column[rows] == value]
            if len(rows) < 2:
                break
        return int(rows[0]) if rows is not None and len(rows) > 0 else None

    def _of_element(self, value):
        """Returns the place of this very object."""
        if self._elements is None:
            self._elements = {}
            for values in filter(self._has_an_element_for_each, [*self._texts(), *self._variables]):
                for position, element in enumerate(values):
                    self._elements.setdefault(id(element), position)
        return self._elements.get(id(value))

    def _texts(self):
        """Returns the columns of a frame whose cells are objects."""
        if not is_frame(self._argument):
            return []
        return [column.to_numpy() for _, column in self._argument.items() if column.dtype == object]

    def _has_an_element_for_each(self, values):
        array_type = getattr(sys.modules.get("numpy"), "ndarray", None)
        if array_type is not None and type(values) is array_type:
            return values.ndim == 1 and values.dtype == object and len(values) == self._count
        return isinstance(values, list) and len(values) == self._count


def _is_series(value):
    series_type = getattr(sys.modules.get("pandas"), "Series", None)
    return series_type is not None and isinstance(value, series_type)
