"""Where the words of user code go: files below the job's ``logs`` folder, one of each kind per process.

``print`` and root ``logging`` go to ``user/stdout``, standard error to ``user/stderr``. The descriptors 1 and 2
themselves belong to the agent, which keeps what child processes and native code write to them apart.

A full disk or a file at its limit costs log lines, never a mini-batch.
"""

import faulthandler
import io
import logging
import os
import sys
import time

from gristmill import contract

LINE_FORMAT = "%(asctime)s|%(name)s|%(levelname)s|%(process)d|%(thread)d|%(funcName)s()|%(message)s"
BUFFER_BYTES = 64 * 1024
LINE_BYTES_WORTH_CUTTING = 4096
"""The beginning of a line this long is kept when the rest has no room; a shorter one is left out."""


class CappedFile(io.FileIO):
    """A log file that stops growing at a limit, and says so in its last line. Several processes may append to it."""

    def __init__(self, path, bytes_max):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        super().__init__(path, "ab")
        self._path = path
        self._bytes_max = bytes_max
        self._is_full = False

    def write(self, data):
        length = memoryview(data).nbytes
        if self._is_full:
            return length
        try:
            size = os.lseek(self.fileno(), 0, os.SEEK_END)
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


def open_text(path, bytes_max):
    """A text stream that hands over whole lines."""
    return io.TextIOWrapper(
        io.BufferedWriter(CappedFile(path, bytes_max), BUFFER_BYTES),
        encoding="utf-8",
        errors="backslashreplace",
        newline="\n",
        line_buffering=True,
    )


def level_number(name):
    """``logging``'s number of a level name; INFO if there is none."""
    number = getattr(logging, str(name).upper(), None)
    return number if isinstance(number, int) else logging.INFO


def line_formatter():
    """Lines as readers of the original know them; times are UTC."""
    formatter = logging.Formatter(LINE_FORMAT)
    formatter.converter = time.gmtime
    return formatter


class CappedFileHandler(logging.Handler):
    """Writes to a capped file that is opened with the first record."""

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
    """``sys.stdout`` and ``sys.stderr`` of the entry script."""

    def __init__(self, logs, node, process, bytes_max):
        user = os.path.join(logs, "user")
        self._paths = {
            "stdout": os.path.join(user, "stdout", node, f"{process}.stdout.txt"),
            "stderr": os.path.join(user, "stderr", node, f"{process}.stderr.txt"),
        }
        self._bytes_max = bytes_max
        self.stdout = self._install("stdout")
        self.stderr = self._install("stderr")
        # Crash reports need a descriptor that stays theirs when user code closes `sys.stderr`.
        self._crash_fd = os.dup(self.stderr.fileno())
        faulthandler.enable(file=self._crash_fd)

    def _install(self, name):
        stream = open_text(self._paths[name], self._bytes_max)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
        return stream

    def flush(self):
        """Brings everything written so far into the files; a stream that user code closed or took apart
        is opened again."""
        try:
            self.stdout.flush()
        except (ValueError, OSError):
            self.stdout = self._install("stdout")
        try:
            self.stderr.flush()
        except (ValueError, OSError):
            self.stderr = self._install("stderr")

    def restore(self):
        """Makes these the standard streams again, whatever user code put in their place."""
        self.flush()
        sys.stdout = sys.__stdout__ = self.stdout
        sys.stderr = sys.__stderr__ = self.stderr


class RootHandler(logging.StreamHandler):
    """Root logging to the script's standard output, wherever that is now."""

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
    """Sends root logging to ``user/stdout`` at the job's level, until the script configures it otherwise.

    ``logging.basicConfig`` does nothing when the root logger has a handler, and writes to standard error when it does
    something. A script that calls it gets what it asks for, as in a fresh interpreter, and still in ``user/stdout``.
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
    """From now on the agent can ask for the stacks of all threads. Returns the file, which must stay open."""
    folder = os.path.join(logs, "sys", "node", node)
    os.makedirs(folder, exist_ok=True)
    file = io.FileIO(os.path.join(folder, f"{process}.stack.txt"), "ab")
    faulthandler.register(contract.STACK_DUMP_SIGNAL, file=file, all_threads=True, chain=False)
    return file
