"""Scripts that hand back results of items before ``run`` has ended: a generator that yields ``(item, row)``, or
``context.done(item, row)``. ``checkpoints.py``, which few scripts need, keeps these results."""

import os
import threading
from types import GeneratorType

from gristmill.results import IllegalResult, made_into_list


class HandingBack:
    """The results that the attempts of one process hand back.

    ``done``: the results of the current attempt, and of earlier ones of its mini-batch, or ``None``. ``kept``: the
    number of items of earlier attempts.
    """

    def __init__(self, channel, folder, writer, path_of):
        self._channel = channel
        self._folder = folder
        self._writer = writer
        self._path_of = path_of
        # Whether a mini-batch may have checkpoints although no attempt of it is known to have ended.
        self._are_used = os.path.isdir(folder)
        self._creating = threading.Lock()
        self._running = None
        self._names_items = False
        self._on_disk = None
        self._read = None
        self.done = None
        self.kept = 0

    def earlier(self, mini_batch):
        """Begins an attempt. Returns the results of earlier attempts of the mini-batch, or ``None``."""
        if not self._are_used and "resumes" not in mini_batch:
            return None
        if self.done is not None:
            self.done.close()
            self.done = None
        self._names_items = False
        self._read = None
        self.kept = 0
        folder = self._folder_of(mini_batch)
        if os.path.isdir(folder):
            done = self._of(mini_batch)
            # The form in which an earlier attempt yielded applies to all attempts, even on ranges of other items.
            self._on_disk = done.read(folder, self._on_disk if "items" in mini_batch else None)
            self._names_items = self._on_disk.is_used
            self._read = done
            self.done = done if done.rows else None
            self.kept = len(done.rows)
        return self.done

    def call(self, run, mini_batch, warnings, *arguments):
        """Calls ``run``, and takes the results that it yields. Returns its result without these."""
        if self.done is not None and (not self.done.left or "only_kept" in mini_batch):
            return None
        self._running = mini_batch
        try:
            result = run(*arguments)
            return self._exhaust(result, mini_batch, warnings) if type(result) is GeneratorType else result
        except BaseException as error:
            if self.done is not None and not self._channel.abandoned:
                self.done.failed(error)
            raise
        finally:
            self._running = None

    def _exhaust(self, generator, mini_batch, warnings):
        """Takes results of items, or returns rows as a list. The first value decides, in the first attempt that hands
        back a result. A rank has no items to name."""
        rows = []
        for value in generator:
            if not rows and _is_pair(value) and mini_batch["payload"]["kind"] != "rank":
                self.take(mini_batch, *value)
                self._take_pairs(generator)
                return None
            if self._names_items:
                raise _no_pair(value)
            rows.append(value)
        if rows or self.done is None:
            warnings.append(made_into_list(generator, mini_batch["mini_batch"]))
        return rows

    def _take_pairs(self, generator):
        done = self.done
        for value in generator:
            if not _is_pair(value):
                raise _no_pair(value)
            done.add(*value)

    def has_kept(self):
        """Returns whether results of items of the current attempt are kept for another one."""
        return self.done is not None and self.done.has_files and len(self.done.rows) > 0

    def take(self, mini_batch, item, row):
        """Takes the result of an item, from any thread of the process."""
        if self._channel.abandoned:
            raise RuntimeError(
                "context.done() was called in a child process: call it in the process that called run(), with the "
                "results of its children"
            )
        if self._running is not mini_batch:
            raise RuntimeError("context.done() was called after run() had ended")
        if self.done is None:
            with self._creating:
                if self.done is None:
                    self.done = self._read or self._of(mini_batch)
        self.done.add(item, row)

    def _of(self, mini_batch):
        from gristmill.checkpoints import ItemsDone

        self._are_used = True
        payload = mini_batch["payload"]
        if payload["kind"] == "rank":
            raise IllegalResult("context.done() needs an item, and a rank has none: return a list")
        # All paths, even if the script has changed its list.
        paths = [self._path_of(path) for path in payload["paths"]] if payload["kind"] == "files" else None
        return ItemsDone(mini_batch, paths, self._folder_of(mini_batch), self._writer)

    def _folder_of(self, mini_batch):
        return os.path.join(self._folder, str(mini_batch["mini_batch"]))


def _no_pair(value):
    return IllegalResult(f"run() yielded a {type(value).__name__} after results of items: yield (item, row) each time")


def _is_pair(value):
    return type(value) is tuple and len(value) == 2
