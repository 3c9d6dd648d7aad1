"""A command that runs a job, in a separate session, so that it outlives the interpreter that started it.

The engine is not a library in that interpreter. So it does not interfere with the user's signals and threads, and all
callers share one engine with one set of messages. A start costs a few milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from typing import IO, Any

from gristmill.api import command
from gristmill.api.errors import GristmillError

ID_EVERY = 0.01
"""Maximum pause between two checks for the id of a job, in seconds."""


class Child:
    """``gristmill run``, ``retry`` or ``enqueue``. Its output goes to files, so that it never waits for a reader.

    The command prints one JSON object for each event, then its result.
    """

    def __init__(self, arguments: list[str], text: str | None = None) -> None:
        self._stdout = tempfile.TemporaryFile()  # noqa: SIM115
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [command.executable(), *arguments, "--json", "--events"],
            env=command.environment(),
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=self._stdout,
            stderr=self._stderr,
            start_new_session=True,
        )
        if text is not None:
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(text.encode())
                self._process.stdin.close()
            except BrokenPipeError:
                pass  # The command has ended, and its messages have the reason.

    def __del__(self) -> None:
        self._stdout.close()
        self._stderr.close()

    def job_id(self) -> str:
        """Waits until the job has an id. Raises the error of a command that ends before."""
        begun = self._wait_for("job")
        return str(begun[0]["job_id"] if begun else self.result()["job_id"])

    def has_steps(self) -> bool:
        """Returns whether the command runs a document with several steps, as soon as it begins a step or a job."""
        return any(event["event"] == "step" for event in self._wait_for("step", "job"))

    def steps(self) -> dict[str, str]:
        """Returns the jobs of the steps that have begun, by the names of the steps."""
        begun, step = {}, ""
        for event in self._events("step", "job") if self.has_steps() else []:
            if event["event"] == "step":
                step = event["step"]
            else:
                begun[step] = event["job_id"]
        return begun

    def warnings(self) -> list[str]:
        """Returns its warnings so far."""
        return [command.PLACE.sub("", event["text"]) for event in self._events("warning")]

    def notes(self) -> list[str]:
        """Returns its notes so far: about decisions, an earlier job, or work that takes long."""
        return [event["text"] for event in self._events("note")]

    def _events(self, *kinds: str) -> list[dict[str, Any]]:
        return [printed for printed in self._objects() if printed.get("event") in kinds]

    def _wait_for(self, *kinds: str) -> list[dict[str, Any]]:
        """Waits for the first event of one of these kinds. Returns none if the command ends without one."""
        pause = 0.002
        while not (found := self._events(*kinds)) and not self.has_ended():
            self.wait(pause)
            pause = min(ID_EVERY, 2 * pause)
        return found or self._events(*kinds)

    def _objects(self) -> list[dict[str, Any]]:
        whole = _content(self._stdout).rpartition("\n")[0]
        return [json.loads(line) for line in whole.split("\n") if line]

    def has_ended(self) -> bool:
        """Returns whether the command has ended."""
        return self._process.poll() is not None

    def wait(self, seconds: float) -> None:
        """Waits for its end, at most this long."""
        if self.has_ended():
            return
        try:
            # `Popen.wait` polls every 50 ms, a tenth of the time of a small job.
            process = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):  # An old kernel, or a container that forbids the call.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
            return
        try:
            poll = select.poll()
            poll.register(process, select.POLLIN)
            poll.poll(1000 * seconds)
        finally:
            os.close(process)

    def result(self) -> dict[str, Any]:
        """Waits for the end, and returns the object that it printed. Raises if it has none."""
        status = self._process.wait()
        answer: dict[str, Any] = next((printed for printed in reversed(self._objects()) if "event" not in printed), {})
        if answer.get("steps"):
            # A document with several steps ended as the last of them.
            answer = {**answer["steps"][-1]["result"], "state": answer["state"], "steps": answer["steps"]}
        if "job_id" in answer and status != command.BUSY:
            return dict(answer)
        if status < 0 and not answer:
            raise GristmillError(
                f"the command that ran the job was killed by signal {-status}; the same call continues it"
            )
        command.fail(status, answer, _content(self._stderr))

    def interrupt(self) -> None:
        """Asks it to stop, as Ctrl-C does: running mini-batches may finish. A second interrupt stops it immediately."""
        self._send(signal.SIGINT)
        try:
            while not self.has_ended():
                self.wait(0.2)
        except KeyboardInterrupt:
            self._send(signal.SIGINT)
            end = time.monotonic() + 5
            while not self.has_ended() and time.monotonic() < end:
                self.wait(0.2)

    def _send(self, number: signal.Signals) -> None:
        if not self.has_ended():
            self._process.send_signal(number)


def _content(file: IO[bytes]) -> str:
    # The command writes at the position of the file, so reading must not move it.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode("utf-8", "replace")
