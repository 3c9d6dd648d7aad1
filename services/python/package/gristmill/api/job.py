"""A job, running or ended, and its results."""

from __future__ import annotations

import csv
import html
import io
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.api import command
from gristmill.api.card import REUSED, card, sentence
from gristmill.api.child import Child
from gristmill.api.errors import GristmillError, at_call, warn
from gristmill.api.printed import Printed
from gristmill.api.step_values import home

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

LOOK_EVERY = 0.5
"""Seconds between two checks of a job that another process runs."""
OWN_EVERY = 0.02
"""Seconds between two checks by an asyncio loop of a job that this process runs."""
LOGS_WITHIN = 10.0
"""Seconds within which the error of a failed job of a target should have reached the store."""


class Job:
    """A job of this machine or of a compute target. ``run``, ``submit``, ``attach`` and ``jobs`` return jobs.

    >>> import gristmill
    >>> job = gristmill.run(lambda numbers: [1 / number for number in numbers], inputs=[1, 2, 4], progress=False)
    >>> (job.state, job.result["items"]["succeeded"])
    ('Completed', 3)
    >>> job.to_pandas()["value"].tolist()
    [1.0, 0.5, 0.25]
    >>> job.failures
    []
    """

    def __init__(self, id: str, target: str | None = None, child: Child | None = None, note: str | None = None) -> None:
        self.id = id
        """Its identity, as in ``gristmill jobs``."""
        self.target = target
        """The name of its compute target; ``None``: this machine."""
        self._child = child
        self._result: dict[str, Any] | None = None
        self._reused = False
        self._note = note
        self._advice: str | None = None
        self._say: Callable[[str], str] = str
        self._printed: Printed | None = None
        self._shown: set[str] = set()

    @classmethod
    def _begun(cls, child: Child, target: str | None, say: Callable[[str], str] = str) -> Job:
        """Returns the job that a command starts, as soon as it has an id."""
        try:
            begun = {"job_id": child.job_id()} if target is None else child.result()
        except KeyboardInterrupt:
            child.interrupt()
            raise
        job = cls(begun["job_id"], target, child if target is None else None)
        job._reused = bool(begun.get("reused"))
        job._say = say
        job._warn(child.warnings())
        return job

    # ---- state -----------------------------------------------------------------------------------------------------

    @property
    def status(self) -> dict[str, Any]:
        """The current status of the job: the object of ``gristmill status --json``.

        It has ``state``, ``progress`` (counts of mini-batches and items), ``hint`` (why the job waits), ``logs`` (a
        path or URL) and, after the end, ``result``.
        """
        status: dict[str, Any] = json.loads(self._call("status", self.id, "--json"))
        self._result = status.get("result") or self._result
        return status

    @property
    def result(self) -> dict[str, Any] | None:
        """The result of the job, as ``gristmill run --json`` prints it; ``None`` before its end.

        It has ``state``, ``cause``, ``output``, ``elapsed_seconds``, and in ``mini_batches`` and ``items`` the numbers
        ``total``, ``succeeded`` and ``failed``.
        """
        if self._result is None:
            self._result = self.status.get("result")
        return self._result

    @property
    def state(self) -> str:
        """One of Running, Completed, Failed, Canceled, Interrupted, Waiting, Queued and Canceling."""
        return str(self._result["state"] if self._result else self.status["state"])

    @property
    def cause(self) -> str | None:
        """The reason why the job has not completed, in one line."""
        return (self.result or {}).get("cause")

    @property
    def reused(self) -> bool:
        """Whether the call found this job ended, with the same code, inputs and settings, and nothing ran again.
        ``fresh=True`` runs it again."""
        return self._reused

    def wait(self, timeout: float | None = None, progress: bool = True, verbose: bool = True) -> Job:
        """Waits for the end, and returns the job.

        Ctrl-C cancels a job that this process runs on this machine, and ends only the wait for any other.

        :param timeout: seconds; ``None``: without limit.
        :param progress: show a progress bar in notebooks and terminals, and lines elsewhere.
        :param verbose: show what the function prints on this machine, its first 200 lines.
        :raises JobFailed: the job failed. The message has the cause, and the traceback of the first error.
        :raises JobCanceled: the job was canceled.
        :raises TimeoutError: the job has not ended yet, and continues.

        >>> import gristmill
        >>> job = gristmill.submit(lambda numbers: numbers, inputs=[1, 2])
        >>> job.wait(timeout=60, progress=False).state
        'Completed'
        """
        from gristmill.api.progress import Bar

        end = None if timeout is None else time.monotonic() + timeout
        if self._printed is None and self._child is not None:
            self._printed = Printed(self.id, home() / "jobs" / self.id / "logs")
        printed = self._printed if verbose else None
        try:
            with Bar(self.id, progress) as bar:
                while not self._has_ended(bar):
                    self._tell(progress)
                    # What a job that has ended printed belongs to an earlier call, unless it has just ended.
                    if printed is not None and not (home() / "jobs" / self.id / "result.json").exists():
                        printed.show(False)
                    left = LOOK_EVERY if end is None else min(LOOK_EVERY, end - time.monotonic())
                    if left <= 0:
                        raise TimeoutError(f"job {self.id} has not ended after {timeout} s; it continues")
                    self._pause(left)
        except KeyboardInterrupt:
            # Not of a class of its own: Python then ends by the signal, which ends a loop of a shell.
            attached = f'gristmill.attach("{self.id}")'
            if self._child is None:
                raise KeyboardInterrupt(f"job {self.id} continues; {attached}.cancel() stops it") from None
            self.cancel()
            if self.state == "Completed":
                raise KeyboardInterrupt(f"job {self.id} has completed; {attached} returns it") from None
            raise KeyboardInterrupt(
                f"job {self.id} was canceled; its committed results stay, and {attached}.retry() continues it"
            ) from None
        self._tell(progress)
        if printed is not None and not self.reused:
            printed.show(True)
        try:
            return self._ended()
        except GristmillError as error:
            raise at_call(error) from None

    def __await__(self) -> Generator[Any, None, Job]:
        import asyncio

        async def wait() -> Job:
            # A check of a job of another process runs a command, which must not block the loop.
            while not (self._has_ended(None) if self._child else await asyncio.to_thread(self._has_ended, None)):
                await asyncio.sleep(LOOK_EVERY if self._child is None else OWN_EVERY)
            self._tell(False)
            return self._ended()

        return wait().__await__()

    def _has_ended(self, bar: Any) -> bool:
        if self._result is not None:
            return True
        if self._child is not None:
            if self._child.has_ended():
                self._result = self._child.result()
                self._reused = self._reused or bool(self._result.get("reused"))
                return True
            if bar is None or not bar.is_due():
                return False
        status = self.status
        if bar is not None:
            bar.show(status)
        if status["state"] == "Interrupted" and (self._child is None or self._child.has_ended()):
            raise GristmillError(f"job {self.id}: {status.get('hint') or 'it was interrupted'}")
        return self._child is None and self._result is not None

    def _tell(self, shown: bool) -> None:
        """Shows notes of the engine, if ``shown``, and whether the result is reused. Passes on warnings."""
        from gristmill.api.progress import note

        notes = [] if self._note is None else [self._note]
        if self._child is not None:
            notes += self._child.notes()
            self._warn(self._child.warnings())
        if self._result is not None and self.reused:
            # Always shown, because data that the function itself reads may have changed.
            self._show_once(note, [REUSED.replace("this job", f"job {self.id}", 1)])
        elif self._result is not None:
            self._warn(_warnings_of(self._result))
            if headline := self._result.get("headline"):
                notes.append(f"job {self.id} {headline}")
        if shown:
            self._show_once(note, notes)

    def _warn(self, texts: list[str]) -> None:
        self._show_once(warn, texts)

    def _show_once(self, show: Callable[[str], None], texts: list[str]) -> None:
        """Shows texts in the words of the call, and no text twice."""
        for text in map(self._say, texts):
            if text and text not in self._shown:
                self._shown.add(text)
                show(text)

    def _pause(self, seconds: float) -> None:
        if self._child is not None:
            self._child.wait(seconds)
        else:
            time.sleep(seconds)

    def _ended(self) -> Job:
        result = self.result or {}
        cause = f"job {self.id} {result.get('state', '').lower()}: {self._say(str(result.get('cause')))}"
        if result.get("state") == "Failed":
            # The advice is about rows. Rows that could not be read have not reached the function.
            is_of_rows = result["mini_batches"]["failed"] and "IllegalResult" not in cause
            advice = self._advice if is_of_rows else None
            raise JobFailed(self, cause, self._say(self._first_traceback()), advice)
        if result.get("state") == "Canceled":
            raise JobCanceled(self, cause)
        return self

    # ---- actions ---------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Stops the job. Committed results stay, and ``retry`` continues the job. An ended job stays as it is."""
        if self._child is not None and not self._child.has_ended():
            self._child.interrupt()
            self._result = self._child.result()
        else:
            self._call("cancel", self.id)

    def retry(
        self,
        progress: bool = True,
        *,
        only: str | None = None,
        separate: bool = False,
        function: Callable[..., Any] | None = None,
        init: Callable[[], Any] | None = None,
        output_format: str | None = None,
    ) -> Job:
        """Runs the work that the output lacks: mini-batches that have not ended, failed ones, and rejected items, each
        in its place. Items with rows in the output do not run again. Waits for the end, and raises like ``wait``.

        An entry script runs as it is now. A function runs as it was when the job began, unless another one replaces it.

        :param only: the part of the ended work to run again: ``"rejects"``, ``"failed"`` mini-batches, or nothing
            (``"unfinished"``).
        :param separate: runs the rejected items in a job of their own, which is returned. Their rows are a file in its
            folder, and this job does not change.
        :param function: runs in place of the function of the job. It gets the same kind of mini-batches.
        :param init: runs in place of the ``init`` of the job.
        :param output_format: ``"csv"``, ``"jsonl"`` or ``"parquet"``, for an output that could not be written; the file
            gets the extension of this format.
        :raises TypeError: the function cannot be used. The message has the reason.

        >>> import gristmill
        >>> def invert(numbers: list):
        ...     return [1 / number for number in numbers]
        >>> job = gristmill.run(invert, inputs=[2, 0, 4], mini_batch_size=1, error_threshold=-1, progress=False)
        >>> len(job.rejects)
        1
        >>> def invert(numbers: list):
        ...     return [1 / number if number else 0.0 for number in numbers]
        >>> job.retry(function=invert, progress=False).rejects
        []
        >>> job.to_pandas()["value"].tolist()
        [0.5, 0.0, 0.25]
        """
        arguments = ["retry", self.id, *(["--separate"] if separate else [])]
        arguments += [] if only is None else ["--only", only]
        arguments += [] if output_format is None else ["--set", f"output_format={output_format}"]
        try:
            if function is not None:
                from gristmill.api import function as functions

                folder = functions.replacement(
                    self.id, self.status["source_directory"], function, init, home() / "functions"
                )
                arguments += ["--source-directory", str(folder)]
            elif init is not None:
                raise TypeError("init goes with a function: pass both")
            if separate:
                arguments += [] if self.target is None else ["--target", self.target]
                return Job._begun(Child(arguments), self.target).wait(progress=progress)
            self._result = None
            self._reused = False
            if self.target is None:
                self._child = Child(arguments)
            else:
                self._call(*arguments)
            return self.wait(progress=progress)
        except Exception as error:
            raise at_call(error) from error.__cause__

    def logs(self, path: str | None = None) -> str | list[str]:
        """Returns the text of a log file, or of all files below a folder; without ``path``, the names of all files.

        :param path: such as ``"user/stdout"`` (what the function printed), ``"user/error"`` or ``"job_result.txt"``.
        :raises FileNotFoundError: the job has no such log; the message names those that it has.

        >>> import gristmill
        >>> job = gristmill.run(lambda items: [print("got", item) for item in items], inputs=[7], progress=False)
        got 7
        >>> "got 7" in job.logs("user/stdout")
        True
        """
        listed = self._call("logs", self.id).splitlines()
        names = [line.split(maxsplit=1)[1] for line in listed if re.match(r"\s*\d+\s", line)]
        if path is None:
            return names
        if path in names:
            return self._call("logs", self.id, path)
        below = [name for name in names if name.startswith(path.rstrip("/") + "/")]
        if not below:
            raise FileNotFoundError(f"job {self.id} has no log {path}; it has {', '.join(names)}")
        return "".join(self._call("logs", self.id, name) for name in below)

    # ---- results ---------------------------------------------------------------------------------------------------

    @property
    def output(self) -> str:
        """The path or URL of the output file.

        :raises GristmillError: the job has no output, or has not ended.
        """
        path = (self.result or {}).get("output")
        if not path:
            raise GristmillError(f"job {self.id} has no output: it is {self.state}")
        return str(path)

    def to_arrow(self) -> pyarrow.Table:
        """Returns the output as an Arrow table: its rows in the order of the inputs, its columns with their types.

        A result without column names, such as a list of numbers, is the column ``value``.

        :raises GristmillError: the job has no output, its output is text without columns, or another job has written
            its own rows to the same path since.
        """
        from gristmill.api.output import read

        return read(self._own_output())

    def to_pandas(self) -> pandas.DataFrame:
        """Returns the output as a DataFrame: its rows in the order of the inputs, with the index, the categories and
        the types that were returned. Nothing is read before this call.
        """
        from gristmill.api.output import to_pandas

        return to_pandas(self.to_arrow(), self.output)

    def to_polars(self) -> polars.DataFrame:
        """Returns the output as a Polars DataFrame."""
        import polars

        table = self.to_arrow()
        for field in table.schema:
            if "decimal256" in str(field.type):
                raise GristmillError(
                    f"column {field.name} is {field.type}, and Polars has no decimals of more than 38 digits: "
                    "job.to_arrow() returns it"
                )
        frame = polars.from_arrow(table)
        assert isinstance(frame, polars.DataFrame)
        # `from_arrow` gives a column without a name another one.
        frame.columns = table.column_names
        return frame

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        """Iterates over the output as Arrow record batches, each read on demand.

        >>> import gristmill
        >>> job = gristmill.run(lambda numbers: numbers, inputs=[1, 2], progress=False)
        >>> sum(batch.num_rows for batch in job)
        2
        """
        from gristmill.api.output import read_batches

        return read_batches(self._own_output())

    def _own_output(self) -> str:
        """Returns the path or URL of the output. Fails if its file is no longer that of the job."""
        path = self.output
        written = (self.result or {}).get("output_version")
        if written is not None and "://" not in path and os.path.exists(path):
            found = os.stat(path)
            is_same = (found.st_size, found.st_mtime_ns) == (written["bytes"], written["modified"])
            if not is_same and self.status["output_changed"]:
                raise GristmillError(
                    f"the rows of job {self.id} are no longer in {path}: another program, or a later job with the same "
                    "output, has written that file; give each job its own output, or read the file with gristmill.read"
                )
        return path

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The failed attempts, in the order in which they ended; ``pandas.DataFrame(job.failures)`` is a table.

        A mini-batch that succeeded without some of its items is not among them: ``rejects`` has these items.

        Each has ``mini_batch`` (a number), ``items`` (their count), ``try`` (from 1), ``status``, ``error`` (a class),
        ``message``, ``node``, ``process``, ``input`` (the paths or rows) and ``traceback``.

        >>> import gristmill
        >>> def invert(numbers: list):
        ...     return [1 / number for number in numbers]
        >>> job = gristmill.run(invert, inputs=[1, 0], mini_batch_size=1, error_threshold=-1, progress=False)
        >>> [(failure["mini_batch"], failure["error"]) for failure in job.failures]
        [(1, 'ZeroDivisionError')]
        """
        try:
            report = self._call("logs", self.id, "sys/job_report/processed_mini-batches.csv")
        except GristmillError:
            return []
        rows = [row for row in csv.DictReader(io.StringIO(report)) if row["Status"] != "RUN_DONE"]
        logs: dict[str, str] = {}
        return [
            {
                "mini_batch": int(row["Mini-batch Id"]),
                "items": int(row["Total"]),
                "try": int(row["Picked Count"]),
                "status": row["Status"],
                "error": row["Error Category"],
                "message": self._say(row["Error Message"]),
                "node": row["Node"],
                "process": row["Process Name"],
                "input": self._say(row["Mini-batch Detail"]),
                "traceback": self._traceback(row, logs),
            }
            for row in rows
        ]

    @property
    def rejects(self) -> list[dict[str, Any]]:
        """The rejected items, in the order of the input; ``pandas.DataFrame(job.rejects)`` is a table.

        They are known once the job has ended. The names are the columns of ``rejects.csv`` in its logs: among
        them ``mini_batch`` and ``item`` (numbers from 0), ``items`` (how many failed together), ``path``,
        ``values`` (the row of a table, a ``dict``), ``exception``, ``message`` and ``traceback``.

        >>> import gristmill
        >>> def invert(numbers: list):
        ...     return [1 / number for number in numbers]
        >>> job = gristmill.run(invert, inputs=[1, 0], mini_batch_size=1, error_threshold=-1, progress=False)
        >>> [(reject["mini_batch"], reject["items"], reject["exception"]) for reject in job.rejects]
        [(1, 1, 'ZeroDivisionError')]
        """
        try:
            table = self._call("logs", self.id, "rejects.csv")
        except GristmillError:
            return []
        rejects: list[dict[str, Any]] = list(csv.DictReader(io.StringIO(table, newline="")))
        traceback: tuple[Any, str] = (None, "")
        for reject in rejects:
            for name in ("mini_batch", "item", "items", "row", "byte_start", "byte_end", "tries"):
                reject[name] = int(reject[name]) if reject[name] else None
            reject["values"] = json.loads(reject["values"]) if reject["values"] else None
            if Path(reject["path"]).parent == home() / "functions" / "inputs":
                if reject["path"].endswith(".jsonl"):
                    reject["values"] = _object_at(reject["detail"], reject["values"])
                reject["path"], reject["detail"] = "inputs", self._say(reject["detail"])
            # The table has a traceback once for each mini-batch.
            if reject["traceback"] or reject["mini_batch"] != traceback[0]:
                traceback = (reject["mini_batch"], reject["traceback"])
            reject["traceback"] = traceback[1]
        return rejects

    def _traceback(self, row: dict[str, str], logs: dict[str, str]) -> str:
        name = f"user/error/{row['Node']}/{row['Process Name']}.txt"
        if name not in logs:
            try:
                logs[name] = self._call("logs", self.id, name)
            except GristmillError:
                logs[name] = ""
        begin = f"mini-batch {row['Mini-batch Id']}, try {row['Picked Count']}: "
        sections = re.split(r"\n(?=\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", logs[name])
        return next((section.partition("\n")[2].strip() for section in sections if begin in section), "")

    def _first_traceback(self) -> str:
        # Nodes of a target send their logs after their results.
        end = time.monotonic() + (0 if self.target is None else LOGS_WITHIN)
        while True:
            try:
                error = self._call("logs", self.id, "--error").partition("\n")[2].strip()
            except GristmillError:
                error = ""
            if error or time.monotonic() >= end:
                return error
            time.sleep(LOOK_EVERY)

    def _call(self, *arguments: str) -> str:
        return command.call(*arguments, *([] if self.target is None else ["--target", self.target]))

    # ---- display ---------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        where = "" if self.target is None else f", target={self.target!r}"
        try:
            text = self._say(sentence(self.status))
        except GristmillError as error:
            text = str(error).partition("\n")[0]
        return f"<Job {self.id}{where}: {text}>"

    def _page(self) -> str:
        """Returns the address of the job's page in a running portal of this user, else the command that starts one."""
        if self.target is not None:
            import shlex

            return shlex.join(["gristmill", "portal", "--target", self.target])
        try:
            portal = json.loads((home() / "portal.json").read_text())
            os.kill(portal["process"], 0)
        except (OSError, ValueError, KeyError):
            return "gristmill portal"
        return f"{portal['address']}#/jobs/{self.id}"

    def _repr_html_(self) -> str:
        """Returns a card for notebooks: state, counts, cause of failure, and the places of output and logs."""
        try:
            return card(self.id, self.status, self.reused, self._page())
        except GristmillError as error:
            return f"<pre>{html.escape(str(error))}</pre>"


class JobFailed(GristmillError):
    """The job failed. ``job`` is the job, ``cause`` the reason in one line, ``traceback`` that of the first error."""

    def __init__(self, job: Job, cause: str, traceback: str = "", advice: str | None = None) -> None:
        super().__init__("\n\n".join(part for part in (cause, traceback, advice) if part))
        self.job = job
        self.cause = cause
        self.traceback = traceback


class JobCanceled(GristmillError):
    """The job was canceled. Its committed results stay; ``job.retry()`` continues it."""

    def __init__(self, job: Job, cause: str) -> None:
        super().__init__(cause)
        self.job = job


def _object_at(place: str, values: Any) -> Any:
    """Returns the object in a line of an input file that this package has written. Returns the values of the line if
    the object can no longer be unpickled."""
    from gristmill.api.inputs import object_of

    path, _, line = place.rpartition(", line ")
    try:
        with open(path, "rb") as lines:
            return object_of(json.loads(next(itertools.islice(lines, int(line) - 1, None))))
    except Exception:
        return values


def _warnings_of(result: dict[str, Any]) -> list[str]:
    """Returns the warnings of an ended job, each in one line."""
    texts = []
    for kind in result.get("warning_kinds", []):
        column = f"column {json.dumps(kind['column'], ensure_ascii=False)}: " if "column" in kind else ""
        times = "once:" if kind["count"] == 1 else f"{kind['count']} times; first:"
        texts.append(f"{column}{kind['problem']} ({times} {kind['first']}); {kind['remedy']}")
    texts += result.get("first_warnings", [])
    counted = sum(kind["count"] for kind in result.get("warning_kinds", [])) + len(result.get("first_warnings", []))
    if (more := result.get("warnings", 0) - counted) > 0:
        texts.append(f'{more} more of its warnings are in job.logs("sys/warning/mini-batch_warnings.txt")')
    return texts
