"""Output of user code: files below the job's ``logs`` folder, one of each kind per process.

``print`` and root ``logging`` go to ``user/stdout``, standard error to ``user/stderr``. The descriptors 1 and 2
themselves belong to the agent, which stores output of child processes and native code separately. ``sys/printed`` says
which part of these files each attempt has written.

A full disk or a file at its limit loses log lines, but never fails a mini-batch.
"""

import faulthandler
import io
import logging
import os
import sys
import time

from gristmill import contract
from gristmill.errors import valid_text

LINE_FORMAT = "%(asctime)s|%(name)s|%(levelname)s|%(process)d|%(thread)d|%(funcName)s()|%(message)s"
STREAMS = ("stdout", "stderr")
BUFFER_BYTES = 64 * 1024
LINE_BYTES_WORTH_CUTTING = 4096
"""Minimum length of a line whose beginning is kept when the rest has no room; shorter lines are dropped."""


class CappedFile(io.FileIO):
    """A log file that stops growing at a limit, with a last line that says so. Several processes may append to it.

    ``before_write``, if given, is called with the size of the file before each write.
    """

    def __init__(self, path, bytes_max, before_write=None):
        self._is_full = False
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            super().__init__(path, "ab")
        except OSError:
            self._is_full = True
            super().__init__(os.devnull, "ab")
        self._path = path
        self._bytes_max = bytes_max
        self._before_write = before_write

    def write(self, data):
        length = memoryview(data).nbytes
        if self._is_full:
            return length
        try:
            size = os.lseek(self.fileno(), 0, os.SEEK_END)
            if self._before_write is not None:
                self._before_write(size)
            if size + length <= self._bytes_max:
                return super().write(data)
            self._is_full = True
            if size <= self._bytes_max:
                kept = bytes(data)[: self._bytes_max - size]
                end_of_line = kept.rfind(b"\n") + 1
                if end_of_line or length < LINE_BYTES_WORTH_CUTTING:
                    kept = kept[:end_of_line]
                else:
                    kept += b"\n"
                super().write(
                    kept + f"[cut here: this file has reached its limit of {self._bytes_max} bytes]\n".encode()
                )
        except OSError:
            pass
        return length


def open_text(path, bytes_max, before_write=None):
    """Returns a text stream that writes whole lines."""
    return io.TextIOWrapper(
        io.BufferedWriter(CappedFile(path, bytes_max, before_write), BUFFER_BYTES),
        encoding="utf-8",
        errors="backslashreplace",
        newline="\n",
        line_buffering=True,
    )


def level_number(name):
    """Returns ``logging``'s number of a level name, or INFO for unknown names."""
    number = getattr(logging, str(name).upper(), None)
    return number if isinstance(number, int) else logging.INFO


def line_formatter():
    """Returns a formatter with the lines of Azure ML; times are UTC."""
    formatter = logging.Formatter(LINE_FORMAT)
    formatter.converter = time.gmtime
    return formatter


class CappedFileHandler(logging.Handler):
    """Writes to a capped file, which it opens at the first record."""

    def __init__(self, path, bytes_max):
        super().__init__()
        self._path = path
        self._bytes_max = bytes_max
        self._stream = None
        self.setFormatter(line_formatter())

    def emit(self, record):
        try:
            if self._stream is None:
                self._stream = open_text(self._path, self._bytes_max)
            self._stream.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)


class UserStreams:
    """``sys.stdout`` and ``sys.stderr`` of the entry script.

    ``attempt`` is the hand-over that the process works on, 0 before the first. The first write of each attempt notes
    in the status page where the output of the attempt begins. The end of an attempt that has written adds a line to
    ``sys/printed/<node>/<process>.txt``: the time in milliseconds since the epoch, the mini-batch, the try, and where
    its part of the file of each stream begins and ends, in bytes. The lines are in the order of time.
    """

    def __init__(self, logs, node, process, bytes_max, status):
        self.attempt = 0
        self._status = status
        user = os.path.join(logs, "user")
        self._paths = {name: os.path.join(user, name, node, f"{process}.{name}.txt") for name in STREAMS}
        self._places_path = os.path.join(logs, "sys", "printed", node, f"{process}.txt")
        self._places = None
        self._bytes_max = bytes_max
        self._has_written = False
        self.stdout = self._install("stdout")
        self.stderr = self._install("stderr")
        # Crash reports need a descriptor that stays open when user code closes `sys.stderr`.
        self._crash_fd = os.dup(self.stderr.fileno())
        faulthandler.enable(file=self._crash_fd)

    def _install(self, name):
        index = STREAMS.index(name)

        def note_beginning(size):
            self._status.note_printed(index, self.attempt, size)
            self._has_written = True

        stream = open_text(self._paths[name], self._bytes_max, note_beginning)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
        return stream

    def flush(self):
        """Flushes both streams to their files, and reopens a stream that user code closed or detached."""
        for name in STREAMS:
            try:
                getattr(self, name).flush()
            except (ValueError, OSError):
                setattr(self, name, self._install(name))

    def begin(self, attempt):
        """Begins an attempt. Output since the last one belongs to no attempt."""
        self.attempt = attempt
        self._has_written = False

    def end(self, mini_batch, try_number):
        """Flushes both streams, and notes which part of them the attempt has written."""
        self.flush()
        if self._has_written:
            self._has_written = False
            try:
                if self._places is None:
                    self._places = CappedFile(self._places_path, self._bytes_max)
                places = [time.time_ns() // 1_000_000, mini_batch, try_number]
                for index, name in enumerate(STREAMS):
                    beginning = self._status.printed_from(index, self.attempt)
                    places += [0, 0] if beginning is None else [beginning, os.stat(self._paths[name]).st_size]
                self._places.write((" ".join(map(str, places)) + "\n").encode())
            except OSError:
                pass

    def printed(self):
        """Returns the last lines that this attempt printed, bounded, with standard error last."""
        stdout, stderr = (self._printed_to(index, name) for index, name in enumerate(STREAMS))
        lines_max = contract.PRINTED_LINES_MAX
        stderr = stderr[-max(lines_max // 2, lines_max - len(stdout)) :]
        stdout = stdout[max(0, len(stdout) + len(stderr) - lines_max) :]
        return valid_text("\n".join(stdout + stderr))

    def _printed_to(self, index, name):
        beginning = self._status.printed_from(index, self.attempt)
        return [] if beginning is None else last_lines(self._paths[name], beginning)

    def restore(self):
        """Restores these standard streams after user code has replaced them."""
        self.flush()
        sys.stdout = sys.__stdout__ = self.stdout
        sys.stderr = sys.__stderr__ = self.stderr


def last_lines(path, beginning):
    """Returns the last lines of a file after an offset, as many as a report may quote from one stream."""
    bytes_max = contract.PRINTED_BYTES_MAX // len(STREAMS)
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(beginning, size - bytes_max)
            file.seek(start)
            text = file.read(bytes_max).decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line for line in text.splitlines() if line.strip()]
    if start > beginning and len(lines) > 1:
        # The first line is truncated.
        del lines[0]
    return lines[-contract.PRINTED_LINES_MAX :]


class RootHandler(logging.StreamHandler):
    """Writes root logging to the script's current standard output."""

    def __init__(self, streams):
        self._streams = streams
        super().__init__(streams.stdout)
        self.setFormatter(line_formatter())

    @property
    def stream(self):
        return self._streams.stdout

    @stream.setter
    def stream(self, _):
        pass


def configure_root_logging(streams, level_name):
    """Sends root logging to ``user/stdout`` at the job's level, unless the script configures it.

    Without a change, ``logging.basicConfig`` would have no effect, because the root logger has a handler. A script that
    calls it gets its configuration, as in a fresh interpreter, but with ``user/stdout`` as the default stream.
    """
    root = logging.getLogger()
    root.setLevel(level_number(level_name))
    handler = RootHandler(streams)
    root.addHandler(handler)
    original = logging.basicConfig

    def basicConfig(**arguments):
        if handler in root.handlers and len(root.handlers) == 1:
            root.removeHandler(handler)
        if not any(arguments.get(name) for name in ("stream", "filename", "handlers")):
            arguments["stream"] = sys.stdout
        original(**arguments)

    basicConfig.__doc__ = original.__doc__
    logging.basicConfig = basicConfig


def register_stack_dump(logs, node, process):
    """Lets the agent request the stacks of all threads. Returns the file, which must stay open."""
    folder = os.path.join(logs, "sys", "node", node)
    try:
        os.makedirs(folder, exist_ok=True)
        file = io.FileIO(os.path.join(folder, f"{process}.stack.txt"), "ab")
    except OSError:
        # Without the file, a report of a hanging run lacks its stacks.
        file = io.FileIO(os.devnull, "ab")
    faulthandler.register(contract.STACK_DUMP_SIGNAL, file=file, all_threads=True, chain=False)
    return file
