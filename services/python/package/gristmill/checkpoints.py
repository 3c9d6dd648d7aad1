"""Item checkpoints: results of items that a script hands back before ``run`` has ended.

A generator yields ``(item, row)``, or the script calls ``context.done(item, row)``. The process appends each result to
a file at once, so that it survives the end of the process. The next attempt gets only the items that are left, and its
answer has the rows of all attempts, in the order of the items: as if one ``run`` had returned them.

``<folder>/<mini-batch>/<writer>`` is one file of each attempt that handed anything back: records, each a length, a
checksum and a pickle. The first record is the header, each other one ``(position, row)``, ``("repeated", (position,
item))`` for an item that came back again, or ``("failed", (position, warning))`` for a failure that no failed item
would report. The end of a file may be missing or damaged, because its process or machine has stopped. The readable part
counts. Only processes of the same job write these files.
"""

import operator
import os
import pickle
import struct
import threading
import time
import zlib

from gristmill.errors import one_line
from gristmill.results import IllegalResult, RowsOfItems

PREFIX = struct.Struct("<II")
FORMAT = "gristmill item checkpoints 1"


class Kept:
    """The content of the files of one mini-batch. Hundreds of its ranges may run, and each adds a file."""

    def __init__(self, folder, items):
        self.folder = folder
        self.items = items
        self.rows = {}
        self.repeated = {}
        self.failures = []
        self.is_used = False
        self._sizes = {}

    def update(self):
        """Reads new records. Items whose records cannot be read run again."""
        try:
            names = sorted(os.listdir(self.folder))
        except OSError:
            return
        for name in names:
            try:
                path = os.path.join(self.folder, name)
                if self._sizes.get(name) == os.stat(path).st_size:
                    continue
                with open(path, "rb") as file:
                    content = file.read()
            except OSError:
                continue
            self._sizes[name] = len(content)
            records = _records(content)
            if next(records, None) == (FORMAT, self.items):
                self.is_used = True
                for record in filter(None, records):
                    if record[0] == "repeated":
                        self.repeated.setdefault(*record[1])
                    elif record[0] == "failed":
                        self.failures.append(record[1])
                    else:
                        self.rows.setdefault(*record)


class ItemsDone:
    """The items of one mini-batch, or of a range of it, that the script has handed back.

    ``paths``: all files of the mini-batch, ``None`` for a table. ``items``: the number of items of this attempt.
    ``left``: the positions, in the whole mini-batch, of the items that ``run`` gets. ``rows``: the results that have
    been handed back, by position. ``has_files``: whether files hold any of them. ``warnings``: messages for users.
    """

    def __init__(self, mini_batch, paths, folder, writer):
        payload = mini_batch["payload"]
        self._all = len(paths) if paths is not None else payload["rows"]
        self._number = mini_batch["mini_batch"]
        self.paths = paths
        self._positions = None
        self._file = os.path.join(folder, f"{writer}-{time.time_ns()}")
        self._descriptor = None
        self._is_kept = True
        self._lock = threading.Lock()
        self._error = None
        first, end = mini_batch.get("items", (0, self._all))
        self._range = range(first, end)
        self.items = end - first
        self.left = self._range
        self.rows = {}
        self.has_files = False
        self.warnings = []
        self._last = None
        self._repeated = {}
        self._failures = set()

    def read(self, folder, kept):
        """Takes over the results of earlier attempts, and returns them. ``kept``: the last value that this method
        returned, if this may be another range of the same mini-batch."""
        if kept is None or (kept.folder, kept.items) != (folder, self._all):
            kept = Kept(folder, self._all)
        kept.update()
        self.rows = {position: kept.rows[position] for position in self._range if position in kept.rows}
        self._repeated = {position: item for position, item in kept.repeated.items() if position in self._range}
        for position, warning in kept.failures:
            if position in self._range and warning not in self._failures:
                self.warnings.append(warning)
            self._failures.add(warning)
        self.has_files = True
        self.left = [position for position in self._range if position not in self.rows]
        return kept

    def add(self, item, row):
        """Takes the result of an item."""
        with self._lock:
            try:
                position = self._position_of(item)
            except IllegalResult as error:
                # The script may catch the error.
                self._error = error
                self._remember_failure(f"{self._foreign(item)}: nothing else is lost")
                raise
            if position in self.rows:
                if position not in self._repeated:
                    self._repeated[position] = repr(item)
                    self._keep("repeated", (position, repr(item)))
                return
            self._keep(position, row)
            self.rows[position] = row
            self._last = position

    def failed(self, error):
        """Records the exception of an attempt. If all items have a result, the next attempt cannot repeat it."""
        with self._lock:
            if error is not self._error and all(position in self.rows for position in self._range):
                self._remember_failure(
                    one_line(
                        f"run() of mini-batch {self._number} failed after it had handed back all its items, whose "
                        f"results count: {type(error).__name__}: {error}"
                    )
                )

    def result(self, returned):
        """Returns the result of ``run``, which has ended and returned this."""
        if self._error is not None:
            raise self._error
        failures = {}
        if type(returned) is RowsOfItems and returned.items == len(self.left):
            # `run_item` hands back results only where that may save work.
            positions = range(len(returned)) if returned.positions is None else returned.positions
            rows = dict(zip(positions, returned, strict=True))
            failures = {self.left[index]: error for index, error in returned.failures}
            for index, position in enumerate(self.left):
                if position not in failures:
                    self.rows.setdefault(position, rows.get(index))
        elif returned is not None and not (hasattr(returned, "__len__") and len(returned) == 0):
            failure = (
                f"run() of mini-batch {self._number} returned a {type(returned).__name__}, and has handed back results "
                "of items: hand back all of them, and return nothing"
            )
            with self._lock:
                self._remember_failure(f"{failure}. What it has handed back counts")
            raise IllegalResult(failure)
        self.close()
        self._warn_of_repeated()
        done = sorted(self.rows)
        result = RowsOfItems(len(done) + len(failures))
        first = self._range.start
        result.failures = [(position - first, error) for position, error in failures.items()]
        result.missing = [
            position - first for position in self._range if position not in self.rows and position not in failures
        ]
        result.positions = [position - first for position in done if self.rows[position] is not None]
        result.extend(self.rows[position + first] for position in result.positions)
        return result

    def place_of(self, position):
        """Returns the place, among the items of the attempt, of an item that ``run`` got. If the item is unknown, or
        was handed back, returns the place of the first one that was not. ``None``: all were handed back."""
        item = None if position is None else self.left[position]
        if item is None or item in self.rows:
            item = next((left for left in self.left if left not in self.rows), None)
        return None if item is None else item - self._range.start

    def close(self):
        """Ends the attempt."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
            self._is_kept = False

    def _position_of(self, item):
        if self.paths is not None and (isinstance(item, str) or hasattr(item, "__fspath__")):
            known = self._places().get(os.fspath(item))
            if known is not None:
                for position in known:
                    if position not in self.rows:
                        return position
                return known[0]
        elif not isinstance(item, bool):
            try:
                index = operator.index(item)
            except TypeError:
                index = -1
            if 0 <= index < len(self.left):
                return self.left[index]
        positions = f"a position from 0 to {len(self.left) - 1}"
        known = positions if self.paths is None else f"one of the paths in mini_batch, or {positions}"
        raise IllegalResult(f"{self._foreign(item)}: an item is {known}. For rows that are pairs, return a list")

    def _foreign(self, item):
        return one_line(f"run() handed back a result of {item!r}, which is not an item of mini-batch {self._number}")

    def _places(self):
        if self._positions is None:
            self._positions = {}
            for position in self._range:
                self._positions.setdefault(self.paths[position], []).append(position)
        return self._positions

    def _warn_of_repeated(self):
        if not self._repeated:
            return
        first = self._repeated[min(self._repeated)]
        if len(self._repeated) == 1:
            warning = f"run() handed back item {first} of mini-batch {self._number} twice: its first row counts"
        else:
            warning = (
                f"run() handed back {len(self._repeated)} items of mini-batch {self._number} more than once, first "
                f"{first}: the first row of each counts"
            )
        self.warnings.append(one_line(warning))

    def _remember_failure(self, warning):
        """Keeps a warning for the next attempt that has the last item that this one has handed back. If the remaining
        items succeed, nothing else reports the failure."""
        if self._last is not None and warning not in self._failures:
            self._failures.add(warning)
            self._keep("failed", (self._last, warning))

    def _keep(self, position, row):
        if not self._is_kept:
            return
        try:
            record = _record((position, row))
        except Exception as error:
            self._stop_keeping(f"a row of the type {type(row).__name__} cannot be pickled ({error})")
            return
        try:
            if self._descriptor is None:
                os.makedirs(os.path.dirname(self._file), exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                self._descriptor = os.open(self._file, flags, 0o666)
                self.has_files = True
                record = _record((FORMAT, self._all)) + record
            while record:
                record = record[os.write(self._descriptor, record) :]
        except OSError as error:
            self._stop_keeping(str(error))

    def _stop_keeping(self, reason):
        self._is_kept = False
        self.warnings.append(
            f"run() of mini-batch {self._number} handed back results that cannot be kept for another try: {reason}"
        )


def _record(value):
    body = pickle.dumps(value, protocol=5)
    return PREFIX.pack(len(body), zlib.crc32(body)) + body


def _records(content):
    """Yields the values of the readable part of a file, and ``None`` for a value that this process cannot unpickle."""
    start = 0
    while start + PREFIX.size <= len(content):
        length, checksum = PREFIX.unpack_from(content, start)
        start += PREFIX.size
        body = content[start : start + length]
        if length == 0 or len(body) < length or zlib.crc32(body) != checksum:
            return
        start += length
        try:
            yield pickle.loads(body)
        except Exception:
            yield None
