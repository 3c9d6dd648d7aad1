"""Whole jobs through the real executable, each in a fresh folder.

A test writes an entry script and data, runs `gristmill`, and looks at what a user would look at: exit status, the
JSON object, the output file, the log tree. Scripts report what they saw with `recorder.record(...)`.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import textwrap
import time
import zipfile
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 180
"""Limit of all waits of these tests, generous because test machines are busy."""

COMPLETED, ERROR, INVALID, FAILED, BUSY, NOT_ENDED, CANCELED = 0, 1, 2, 42, 75, 124, 130
"""The exit statuses of COMMANDS.md."""

# Says in the record that it has begun, and on which GPUs, and waits for `Workplace.release`.
HOLDS_UNTIL_RELEASE = """
    import os
    from recorder import record, wait_for
    def run(files):
        record(os.environ["JOB"] + " began", gpus=os.environ.get("CUDA_VISIBLE_DEVICES"))
        wait_for(lambda: os.path.exists(os.environ["RELEASE"]))
        return [os.path.basename(files[0])]
"""

# Says in the record which file it runs.
RECORDS_ITS_FILES = """
    import os
    from recorder import record
    def run(files):
        name = os.path.basename(files[0])
        record("run", file=name)
        return [name]
"""

# Says in the record that it has begun.
RECORDS_ITS_RUNS = """
    import os
    from recorder import record
    def run(files):
        record(os.environ["JOB"] + " began")
        return [os.path.basename(files[0])]
"""

RECORDER = '''
"""Records facts from the entry script for the test."""
import json, os, time

def record(event, **facts):
    line = json.dumps({"event": event, "pid": os.getpid(), **facts}, default=str) + "\\n"
    with open(os.environ["RECORD"], "a") as file:
        file.write(line)

def recorded(event):
    """Returns the facts that processes of this job have recorded so far."""
    try:
        with open(os.environ["RECORD"]) as file:
            # Only complete lines count.
            whole = file.read().rpartition("\\n")[0]
    except FileNotFoundError:
        return []
    return [fact for fact in map(json.loads, whole.splitlines()) if fact["event"] == event]

def wait_for(condition):
    """Waits for a condition that another process makes true."""
    while not condition():
        time.sleep(0.01)
'''

HOLDS = """
    import os
    from recorder import record, recorded, wait_for
    def run(files, context):
        name = os.path.basename(files[0])
        print(name)
        if name >= os.environ.get("HOLD", "000.txt"):
            record("held", file=name, node=context.node_id)
            wait_for(lambda: recorded("go"))
        record("run", file=name, node=context.node_id)
        return [name]
"""
"""A script that holds every file, or those from HOLD on, until `go`."""


def python_with(requirements: Path) -> str:
    """Returns the Python of a separate environment with these requirements, and creates it if it is missing."""
    made = subprocess.run(
        [ROOT / "scripts/python-environment", requirements], capture_output=True, text=True, timeout=600
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.split()[-1]


def wait_until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE_SECONDS) -> Any:
    """Waits for a condition that depends on another process, and returns its value."""
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        if value := condition():
            return value
        # A condition may start a process: evaluation takes a quarter of the time at most, and half if it takes long.
        took = time.monotonic() - began
        time.sleep(max(0.01, took, min(3 * took, 0.5)))
    raise AssertionError(f"not within {seconds} s: {what}")


def file_names(count: int, without: Container[int] = ()) -> list[str]:
    """Returns the names of the files that `Workplace.data` writes, except for those with these numbers."""
    return [f"{number:03}.txt" for number in range(count) if number not in without]


def next_second() -> None:
    """Waits until a new job has a later id: ids contain whole seconds."""
    end = int(time.time()) + 1
    wait_until(lambda: time.time() >= end, "the next second")


def go(workplace: Workplace, event: str = "go") -> None:
    """Releases scripts that wait for this record."""
    with workplace.record_file.open("a") as file:
        file.write(json.dumps({"event": event}) + "\n")


def as_user(user: int) -> str:
    """Returns a command that runs another one as this user, who reads the files of tests wherever they are."""
    reads = "-all,+dac_read_search"
    return f"setpriv --reuid {user} --regid {user} --clear-groups --inh-caps {reads} --ambient-caps {reads}"


def is_alive(pid: int) -> bool:
    """Returns whether a process still runs; zombies do not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_ended(processes: Iterable[int]) -> None:
    """Waits until Python processes have ended with their engine."""
    left = list(processes)
    wait_until(lambda: not any(map(is_alive, left)), "the Python processes end with their engine")


def write_wheel(folder: Path, name: str, module: str) -> Path:
    """Returns a package with one module, which pip installs without a download."""
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}.py", module)
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return wheel


def write_slow_package(workplace: Workplace) -> Path:
    """Writes a `requirements.txt` whose installation takes long, like that of a large environment.

    Returns a folder: the installation writes the number of its process to the file `builder` there, and waits for `go`.
    """
    project = """
        [build-system]
        requires = []
        build-backend = "backend"
        backend-path = ["."]
    """
    backend = """
        import os, pathlib, time
        here = pathlib.Path(__file__).parent
        def build_wheel(*_, **__):
            (here / "builder").write_text(str(os.getpid()))
            while not (here / "go").exists():
                time.sleep(0.05)
    """
    folder = workplace.folder / "package"
    workplace.write({"package/pyproject.toml": project, "package/backend.py": backend})
    workplace.write({"requirements.txt": f"slow-package @ file://{folder}\n"})
    return folder


@dataclass
class Ended:
    """How one `gristmill` command ended."""

    exit_status: int
    stdout: str
    stderr: str
    job: Job | None = None
    result: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"exit status {self.exit_status}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"

    @property
    def state(self) -> str:
        return self.result["state"]

    @property
    def cause(self) -> str:
        return self.result["cause"] or ""

    @property
    def job_id(self) -> str:
        return self.result["job_id"]

    @property
    def logs(self) -> Path:
        return Path(self.result["logs"])

    @property
    def output(self) -> bytes:
        return Path(self.result["output"]).read_bytes()

    @property
    def lines(self) -> list[str]:
        return self.output.decode().splitlines()

    @property
    def items(self) -> tuple[int, int, int]:
        """Returns the numbers of items: total, succeeded, failed."""
        return _counts(self.result["items"])

    @property
    def mini_batches(self) -> tuple[int, int, int]:
        """Returns the numbers of mini-batches: total, succeeded, failed."""
        return _counts(self.result["mini_batches"])

    def log(self, pattern: str) -> str:
        """Returns the text of all matching log files, in the order of their names."""
        files = sorted(self.logs.glob(pattern))
        assert files, f"no log file matches {pattern}; there are {self.log_files()}"
        return "".join(file.read_text(errors="replace") for file in files)

    def log_files(self) -> list[str]:
        return sorted(str(file.relative_to(self.logs)) for file in self.logs.rglob("*") if file.is_file())

    def attempts(self) -> list[dict[str, str]]:
        """Returns the rows of processed_mini-batches.csv, in the order of the mini-batches."""
        rows = self.table("sys/job_report/processed_mini-batches.csv")
        return sorted(rows, key=lambda row: int(row["Mini-batch Id"]))

    def table(self, path: str) -> list[dict[str, str]]:
        """Returns the rows of a table among the logs."""
        with (self.logs / path).open(newline="") as file:
            return list(csv.DictReader(file))

    def rejects(self) -> list[dict[str, str]]:
        """Returns the rows of the table of rejected items, which must explain every failed item."""
        tables = self.result["rejects"]
        rows = self.table(tables["csv"])
        assert sum(int(row["items"]) for row in rows) == tables["items"] == self.items[2], rows
        return rows


def _counts(counts: dict[str, int]) -> tuple[int, int, int]:
    return counts["total"], counts["succeeded"], counts["failed"]


class Workplace:
    """A fresh folder with a home for jobs, and the environment every command runs in."""

    def __init__(self, folder: Path, executable: Path, python: Path) -> None:
        self.folder = folder
        self.executable = executable
        self.home = folder / "home"
        self.record_file = folder / "record.jsonl"
        self.started: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("GRISTMILL", "AZ"))},
            "GRISTMILL_HOME": str(self.home),
            "GRISTMILL_PYTHON": str(python),
            "RECORD": str(self.record_file),
            # Tests tell scripts on workers what to do by variables of the workers.
            "GRISTMILL_PASS_ENVIRONMENT": "*",
            # Where tests run as root, the files of tests are for root alone.
            "GRISTMILL_JOB_USERS": "none",
            # Tests ignore the machine's own GPUs.
            "AZ_BATCHAI_GPU_COUNT_FOUND": "0",
        }

    def command(self, *arguments: object, **environment: str) -> Ended:
        """Runs `gristmill` with these arguments to its end."""
        return self.start(*arguments, **environment).wait()

    def start(self, *arguments: object, **environment: str) -> Running:
        process = subprocess.Popen(
            [str(self.executable), *map(str, arguments)],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Output that the test has not read line by line is available at the end.
            bufsize=0,
            start_new_session=True,
        )
        self.started.append(process)
        return Running(self, process)

    def role(self, *arguments: object, **environment: str) -> Running:
        """Starts a worker or a reducer, and waits until it is ready."""
        running = self.start(*arguments, **environment)
        line = running.process.stdout.readline().decode()
        assert "ready" in line, f"{line}{running.wait()}"
        return running

    def __enter__(self) -> Workplace:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_what_still_runs()

    def kill_what_still_runs(self) -> None:
        """A failed test leaves no engine behind; Python processes end with their engine."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def write(self, files: dict[str, bytes | str]) -> None:
        """Writes files below the folder; text is dedented."""
        for name, content in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else textwrap.dedent(content).encode())

    def add_conda_tool(self) -> None:
        """Adds `env.yml`, and a stand-in for micromamba, which quickly creates an environment without packages."""
        text = f"""
            #!/bin/sh
            [ "$1" != --version ] || exit 0
            echo "$@" > {self.folder}/called
            while [ "$1" != --prefix ]; do shift; done
            exec {self.environment["GRISTMILL_PYTHON"]} -m venv --without-pip "$2"
        """
        environment = "dependencies: [python=3.11, libgdal=3.8, {pip: [tiny]}]\n"
        self.write({"bin/micromamba": text.lstrip("\n"), "env.yml": environment})
        (self.folder / "bin/micromamba").chmod(0o755)
        self.environment["PATH"] = f"{self.folder}/bin:{self.environment['PATH']}"

    def data(self, count: int, folder: str = "data") -> None:
        """Writes this many small files: `000.txt` contains `000`."""
        (self.folder / folder).mkdir(parents=True, exist_ok=True)
        for position in range(count):
            (self.folder / folder / f"{position:03}.txt").write_text(f"{position:03}")

    def job(self, script: str, **settings: Any) -> Job:
        """Returns a job with the entry script `script`; settings replace the defaults below, `None` omits a key."""
        return Job(self, script, settings)

    def job_of_its_own(self, name: str, count: int, script: str, **settings: Any) -> Job:
        """Returns a job over this many files. Its data, entry script, job file and output are called `name`.

        The script finds the name in JOB, and in RELEASE the file that `release` creates.
        """
        self.data(count, name)
        variables = {"JOB": name, "RELEASE": str(self.folder / f"release-{name}")}
        names = {"name": name, "file": f"{name}.yaml", "entry_script": f"{name}.py", "output": f"output/{name}"}
        inputs = [{"name": "data", "type": "file", "path": name}]
        usual = {"speculation": False, "environment_variables": variables}
        return self.job(script, inputs=inputs, **{**usual, **names, **settings})

    @contextmanager
    def commands_by(self, executable: Path) -> Iterator[None]:
        """Runs commands by another executable."""
        usual, self.executable = self.executable, executable
        try:
            yield
        finally:
            self.executable = usual

    def release(self, *names: str) -> None:
        """Lets the scripts of these jobs go on."""
        for name in names:
            (self.folder / f"release-{name}").touch()

    def recorded(self, event: str) -> list[dict[str, Any]]:
        """Returns the facts that scripts have recorded so far, from complete lines only."""
        if not self.record_file.exists():
            return []
        whole, _, _ = self.record_file.read_text().rpartition("\n")
        facts = map(json.loads, whole.splitlines())
        return [fact for fact in facts if fact["event"] == event]

    def progress(self, job_id: str) -> dict[str, Any]:
        """Returns the latest progress of a job, an empty object before the first. Reading its file starts no process,
        as `gristmill status` would."""
        file = self.home / "jobs" / job_id / "progress.json"
        progress: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return progress

    def ended_mini_batches(self, job_id: str) -> int:
        """Returns how many mini-batches have succeeded or failed."""
        counts = self.progress(job_id).get("mini_batches", {})
        return counts.get("succeeded", 0) + counts.get("failed", 0)

    def copy_of(self, job_id: str, other: str) -> Path:
        """Copies a job that has ended under another id, and returns the folder of the copy."""
        folder = self.home / "jobs" / other
        shutil.copytree(self.home / "jobs" / job_id, folder)
        for name in ("spec.json", "result.json", "progress.json"):
            file = folder / name
            if file.exists():
                file.write_text(file.read_text().replace(job_id, other))
        return folder

    def job_ids(self) -> list[str]:
        return sorted(folder.name for folder in (self.home / "jobs").glob("*"))


class Job:
    """A job file and its entry script."""

    def __init__(self, workplace: Workplace, script: str, settings: dict[str, Any]) -> None:
        self.workplace = workplace
        self.file = workplace.folder / settings.pop("file", "job.yaml")
        tabular = any(given["type"] == "tabular" for given in settings.get("inputs") or [])
        merged = {
            "name": "test",
            "entry_script": "entry.py",
            "source_directory": "code",
            "inputs": [{"name": "data", "type": "file", "path": "data"}],
            "mini_batch_size": "1MB" if tabular else 1,
            "output": "output",
            "output_action": "append_row",
            "append_row_file_name": "rows.txt",
            "error_threshold": -1,
            "process_count_per_node": 1,
            "run_max_try": 1,
            # Tests run one job with several settings; tests of reuse enable it.
            "allow_reuse": False,
            **settings,
        }
        self.settings = {name: value for name, value in merged.items() if value is not None}
        workplace.write({"code/recorder.py": RECORDER})
        if self.settings.get("entry_script"):
            workplace.write({f"code/{self.settings['entry_script']}": script})
        # Any JSON document is a YAML document.
        self.file.write_text(json.dumps(self.settings, indent=2))

    def run(self, *arguments: str, expect: int = COMPLETED, **environment: str) -> Ended:
        """Runs the job to its end and checks the exit status."""
        ended = self.start(*arguments, **environment).wait()
        assert ended.exit_status == expect, str(ended)
        return ended

    def start(self, *arguments: str, **environment: str) -> Running:
        running = self.workplace.start("run", self.file, "--json", *arguments, **environment)
        running.job = self
        return running

    def interrupt(self, hold: str, committed: int) -> str:
        """Kills the engine while the script holds the file `hold` and this many mini-batches are committed."""
        running = self.start(HOLD=hold)
        pid = running.wait_for_record("held")[0]["pid"]
        job_id = self.workplace.job_ids()[-1]

        def enough() -> bool:
            return self.workplace.progress(job_id).get("mini_batches", {}).get("succeeded") == committed

        wait_until(enough, f"{committed} committed mini-batches")
        running.kill(pid)
        return job_id

    def crash(self, step: str, **environment: str) -> str:
        """Lets the engine kill itself at this step, and returns the id of the job. Processes must record `import`."""
        crashed = self.start(GRISTMILL_CRASH_AT=step, **environment).wait()
        assert crashed.exit_status == -signal.SIGKILL, f"{step} was not passed: {crashed}"
        wait_until_ended(fact["pid"] for fact in self.workplace.recorded("import"))
        ids = self.workplace.job_ids()
        assert len(ids) == 1, ids
        return ids[0]

    def retry(self, job_id: str, expect: int = COMPLETED, **environment: str) -> Ended:
        """`gristmill retry` of an earlier run of this job."""
        ended = self.workplace.command("retry", job_id, "--json", **environment)
        assert ended.exit_status == expect, str(ended)
        return ended


class Running:
    """A `gristmill` command that runs."""

    def __init__(self, workplace: Workplace, process: subprocess.Popen[bytes]) -> None:
        self.workplace = workplace
        self.process = process
        self.job: Job | None = None

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the engine only, not to its Python processes."""
        self.process.send_signal(number)

    def kill(self, *processes: int) -> None:
        """Kills the engine, and waits until it has ended, and these Python processes with it."""
        self.send(signal.SIGKILL)
        assert self.wait().exit_status == -signal.SIGKILL
        wait_until_ended(processes)

    def stop(self) -> Ended:
        """Asks a role to end, which it does in order."""
        self.send(signal.SIGTERM)
        ended = self.wait()
        assert ended.exit_status == 0, str(ended)
        return ended

    def wait_for_record(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Waits until scripts have recorded the event this many times."""

        def enough() -> list[dict[str, Any]]:
            has_ended = self.process.poll() is not None
            facts = self.workplace.recorded(event)
            if len(facts) < count and has_ended:
                raise AssertionError(f"the job ended before {count} x {event!r}: {self.wait()}")
            return facts if len(facts) >= count else []

        return wait_until(enough, f"{count} x {event!r}")

    def wait(self, seconds: float = 2 * DEADLINE_SECONDS) -> Ended:
        """Waits for the end. With `--json` the last line of stdout is the result."""
        try:
            stdout, stderr = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            stdout, stderr = self.process.communicate()
            raise AssertionError(
                f"{self.process.args} still ran after {seconds} s\n{stdout.decode()}\n{stderr.decode()}"
            ) from None
        # Ctrl-C ends a command by a signal, which a shell shows as 130.
        status = CANCELED if self.process.returncode == -signal.SIGINT else self.process.returncode
        ended = Ended(status, stdout.decode(), stderr.decode(errors="replace"), self.job)
        if "--json" in self.process.args and ended.exit_status in (COMPLETED, FAILED, CANCELED):
            ended.result = json.loads(ended.stdout)
        return ended
