"""A command that runs a job, in a session of its own: it outlives the interpreter that started it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from typing import IO, Any

from gristmill.api import command
from gristmill.api.errors import GristmillError, JobBusy

JOB_LINE = re.compile(r"^(?:continuing )?job ([^\s:]+):?$", re.MULTILINE)
"""What the command says first about a job that it starts or continues."""
WARNING = re.compile(r"^warning: (.*(?:\n  .*)*)", re.MULTILINE)
NOTE = re.compile(
    r"^(?:note: |continuing job |job \S+ (?:is unfinished|has completed|has failed mini-batches), and this is a new job"
    r"|the inputs have changed since job |creating a Python environment ).*(?:\n  .*)*",
    re.MULTILINE,
)
"""What the command says about its decisions, about an earlier job, or about work that takes long."""
SAID_EVERY = 0.01
"""The longest pause, in seconds, between two looks at what the command has written."""

STEP_LINE = re.compile(r"^step \S+ \(\d+ of \d+\)$", re.MULTILINE)


class Child:
    """``gristmill run``, ``retry`` or ``enqueue``, with its output in files, which no reader has to empty."""

    def __init__(self, arguments: list[str], text: str | None = None) -> None:
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [command.executable(), *arguments],
            env=command.environment(),
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=self._printed,
            stderr=self._said,
            start_new_session=True,
        )
        if text is not None:
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(text.encode())
                self._process.stdin.close()
            except BrokenPipeError:
                pass  # It has ended, and says why.

    def __del__(self) -> None:
        self._printed.close()
        self._said.close()

    def job_id(self) -> str:
        """Waits until the job has an id. Raises what ended the command before."""
        found = self._wait_to_say(JOB_LINE)
        return found[1] if found else str(self.result()["job_id"])

    def has_steps(self) -> bool:
        """Returns whether the command runs a document with several steps, as soon as it says so or starts a job."""
        self._wait_to_say(STEP_LINE, JOB_LINE)
        return STEP_LINE.search(self.said()) is not None

    def _wait_to_say(self, *lines: re.Pattern[str]) -> re.Match[str] | None:
        """Waits until the command has written one of these lines, and returns it; ``None``: it ended without them."""
        pause = 0.002
        while True:
            has_ended = self.has_ended()
            said = self.said()
            found = next(filter(None, (line.search(said) for line in lines)), None)
            if found or has_ended:
                return found
            self.wait(pause)
            pause = min(SAID_EVERY, 2 * pause)

    def steps(self) -> dict[str, str]:
        """Returns the jobs of the steps that have begun, by the names of the steps."""
        begun = {}
        for part in self.said().split("\nstep ") if self.has_steps() else []:
            if found := JOB_LINE.search(part):
                begun[part.removeprefix("step ").partition(" (")[0]] = found[1]
        return begun

    def said(self) -> str:
        """Returns what it has written to standard error so far."""
        return _content(self._said)

    def warnings(self) -> list[str]:
        """Returns the warnings among it."""
        return [command.PLACE.sub("", text) for text in WARNING.findall(self.said())]

    def notes(self) -> list[str]:
        """Returns what it said about decisions, about an earlier job, or about work that takes long."""
        return [found[0] for found in NOTE.finditer(self.said())]

    def has_ended(self) -> bool:
        """Returns whether the command has ended."""
        return self._process.poll() is not None

    def wait(self, seconds: float) -> None:
        """Waits for its end, at most this long."""
        if self.has_ended():
            return
        try:
            # `Popen.wait` looks every 50 ms, a tenth of a small job.
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
        printed = _content(self._printed)
        try:
            answer = json.loads(printed.strip().splitlines()[-1])
        except (ValueError, IndexError):
            answer = {}
        if answer.get("steps"):
            # A document with several steps ended as the last of them.
            answer = {**answer["steps"][-1]["result"], "state": answer["state"], "steps": answer["steps"]}
        if "job_id" in answer and status != command.BUSY:
            return dict(answer)
        if status < 0:
            raise GristmillError(
                f"the command that ran the job was killed by signal {-status}; job.retry() continues it"
            )
        if status == command.BUSY:
            raise JobBusy(answer.get("error") or self.said().strip())
        command.fail(status, printed, self.said())

    def interrupt(self) -> None:
        """Asks it to stop, as Ctrl-C does: running mini-batches may finish. A second interrupt stops at once."""
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
