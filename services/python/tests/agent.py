"""A minimal agent: starts the real worker process and speaks frames with it. Also the shortest description of how an
agent does that."""

import fcntl
import io
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(os.environ["GRISTMILL"]).resolve().parent / "python"
"""The package with the extension of the tested build; ``scripts/build`` puts it next to the executable."""
BOOTSTRAP = PACKAGE / "gristmill" / "bootstrap.py"
PREFIX = struct.Struct("<II")
WAIT_SECONDS = 60
"""Maximum wait of a test. No test depends on the passing of time."""
PHASES = ("starting", "init", "idle", "load", "run", "report", "shutdown", "import")
STACK_DUMP_SIGNAL = signal.SIGRTMAX - 1


class Agent:
    """One worker process with its script, in a separate folder."""

    def __init__(
        self, folder, script, *, name="score.py", files=None, python=sys.executable, environment=None, **configure
    ):
        self.folder = Path(folder)
        self.snapshot = self.folder / "snapshot"
        self.scratch = self.folder / "scratch"
        self.logs = self.folder / "logs"
        self.output = self.folder / "output"
        for directory in (self.snapshot, self.scratch, self.logs):
            directory.mkdir(parents=True, exist_ok=True)
        self.script = self.snapshot / name
        for path, text in {name: script, **(files or {})}.items():
            target = self.snapshot / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        self._sequence = 0
        self._received = b""
        self._start(python, environment or {})
        self.configure = {
            "frame": "configure",
            "module": name.removesuffix(".py").replace("/", "."),
            "snapshot": str(self.snapshot),
            "script": str(self.script),
            "argv": [],
            "process": "process000",
            "node": "0",
            "logs": str(self.logs),
            "output": str(self.output),
            "scratch": str(self.scratch),
            "checkpoints": str(self.folder / "checkpoints"),
            "logging_level": "INFO",
            "profiling_module": "",
            "rows_wanted": True,
            "output_format": "text",
            "to_csv_arguments": {},
            "strict_results": False,
            "log_bytes_max": 1 << 20,
            "threads": 1,
            "tabular": False,
            "items_per_mini_batch": None,
            **configure,
        }
        self.send(self.configure)

    def _start(self, python, environment):
        ours, theirs = socket.socketpair()
        ours.settimeout(WAIT_SECONDS)
        status = os.memfd_create("status")
        os.ftruncate(status, 4096)
        self._status = mmap.mmap(status, 4096)
        # Above every number that they get in the child.
        sources = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in (theirs.fileno(), status)]

        def place_descriptors():
            for source, target in zip(sources, (3, 4), strict=True):
                os.dup2(source, target, inheritable=True)

        (self.folder / "fd").mkdir(exist_ok=True)
        with open(self.folder / "fd" / "1", "wb") as stdout, open(self.folder / "fd" / "2", "wb") as stderr:
            self.process = subprocess.Popen(
                [python, str(BOOTSTRAP)],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(3, 4),
                preexec_fn=place_descriptors,
                start_new_session=True,
                cwd=self.scratch,
                env={**os.environ, **environment},
            )
        for fd in (*sources, status):
            os.close(fd)
        theirs.close()
        self.socket = ours

    # Frames to the process.

    def send(self, header, descriptors=()):
        body = json.dumps(header).encode()
        data = PREFIX.pack(len(body), 0) + body
        if descriptors:
            sent = socket.send_fds(self.socket, [data], descriptors)
            data = data[sent:]
        self.socket.sendall(data)

    def mini_batch(self, payload, *, mini_batch=None, try_number=1, key=(), items=None, **flags):
        self._sequence += 1
        entry = {
            "sequence": self._sequence,
            "mini_batch": self._sequence - 1 if mini_batch is None else mini_batch,
            "try_number": try_number,
            "payload": payload,
        }
        if try_number > 1 or items:
            entry["resumes"] = True
        if items:
            entry["items"] = items
        if key:
            entry["key"] = key
        # names_failed_items, doubted
        entry.update(flags)
        return entry

    def files(self, paths, **details):
        return self.mini_batch({"kind": "files", "paths": paths}, **details)

    def hand_over(self, *mini_batches, descriptors=()):
        self.send({"frame": "mini_batches", "mini_batches": list(mini_batches)}, descriptors)

    def run(self, paths=("a",), **details):
        """Runs one mini-batch of files and returns its event."""
        self.hand_over(self.files(list(paths), **details))
        return self.receive()

    def run_table(self, batch, *, total=None, **details):
        """Runs one mini-batch of rows, given as a `pyarrow` record batch, and returns its event."""
        memory, length = memory_file(batch)
        payload = {"kind": "table", "rows": batch.num_rows, "total": total or batch.num_rows, "bytes": length}
        self.hand_over(self.mini_batch(payload, **details), descriptors=[memory])
        os.close(memory)
        return self.receive()

    # Frames from the process.

    def receive(self):
        """Returns the next event, with its rows and the default status, or `None` at the end of the stream."""
        header = self._read(PREFIX.size)
        if header is None:
            return None
        header_length, payload_length = PREFIX.unpack(header)
        event = json.loads(self._read(header_length))
        event["rows"] = self._read(payload_length) if payload_length else b""
        if event["frame"] == "answered":
            event.setdefault("status", "succeeded")
        return event

    def _read(self, length):
        while len(self._received) < length:
            try:
                piece = self.socket.recv(1 << 20)
            except ConnectionResetError:
                return None
            if not piece:
                return None
            self._received += piece
        data, self._received = self._received[:length], self._received[length:]
        return data

    def ready(self):
        event = self.receive()
        assert event is not None, self.stderr_of_descriptor()
        assert event["frame"] == "ready", event
        return event

    def finish(self):
        """Ends the process normally and returns the events before its end."""
        self.send({"frame": "finish"})
        events = []
        while (event := self.receive()) is not None:
            events.append(event)
        assert self.wait() == 0, self.stderr_of_descriptor()
        return events

    def wait(self):
        return self.process.wait(WAIT_SECONDS)

    def close(self):
        self.socket.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    # The status page of the process.

    def status(self):
        """Returns `(sequence, phase, since)` from the status page."""
        state, since = struct.unpack_from("<QQ", self._status)
        return state >> 8, PHASES[state & 0xFF], since

    def run_since(self):
        """Returns the time at which the last ``run()`` began, from the status page."""
        return struct.unpack_from("<Q", self._status, 64)[0]

    def recall(self, first, end):
        """Recalls the unstarted mini-batches `first .. end`."""
        struct.pack_into("<Q", self._status, 16, first)
        struct.pack_into("<Q", self._status, 24, end)

    def wait_for_phase(self, phase, sequence=None):
        """Waits until the status page shows the phase, without relying on durations."""
        while True:
            now, what, _ = self.status()
            if what == phase and sequence in (None, now):
                return
            assert self.process.poll() is None, self.stderr_of_descriptor()
            os.sched_yield()

    def log(self, path):
        return (self.logs / path).read_text()

    def stdout(self):
        return self.log("user/stdout/0/process000.stdout.txt")

    def stderr(self):
        return self.log("user/stderr/0/process000.stderr.txt")

    def stderr_of_descriptor(self):
        return (self.folder / "fd" / "2").read_text()


def lines(event):
    """Returns the rows of a success."""
    assert event["status"] == "succeeded", event
    return event["rows"].decode().splitlines()


def rows(event):
    """Returns the words of the rows of a success."""
    return " ".join(lines(event)).split()


def rows_of_tables(event):
    """Returns the rows of the tables of an event, which follow one another."""
    import pyarrow

    rows, stream = [], io.BytesIO(event["rows"])
    while stream.tell() < len(event["rows"]):
        rows += pyarrow.ipc.open_stream(stream).read_all().to_pylist()
    return rows


def memory_file(batch):
    """Returns a sealed memory file with the batch as an Arrow IPC stream, and its length."""
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data = sink.getvalue().to_pybytes()
    memory = os.memfd_create("table", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.write(memory, data)
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
    return memory, len(data)
