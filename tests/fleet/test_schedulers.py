"""The examples for CI and schedulers: `run_once` by itself, and as each scheduler starts it."""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
from collections import Counter

import pytest
from ruamel.yaml import YAML

from harness import BUSY, CANCELED, COMPLETED, FAILED, INVALID, ROOT, go, wait_until
from targets import Target

EXAMPLES = ROOT / "examples/schedulers"
FILES = 4
# Says which file it runs; a file called in HOLD waits, one called in BAD fails.
SCRIPT = """
    import os
    from recorder import record, recorded, wait_for
    def run(files):
        name = os.path.basename(files[0])
        record("run", file=name)
        if os.path.exists("{folder}/hold-" + name):
            record("held", file=name)
            wait_for(lambda: recorded("go"))
        if os.path.exists("{folder}/bad-" + name):
            raise ValueError("bad")
        return [name]
"""


class Pipeline:
    """A scheduler's folder, which has a job file and a copy of run_once, and a target with one worker."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.workplace = target.workplace
        self.folder = self.workplace.folder
        self.workplace.data(FILES)
        script = SCRIPT.replace("{folder}", str(self.folder))
        self.workplace.job(script, mini_batch_size=1, run_max_try=1, error_threshold=0, allow_reuse=True)
        shutil.copy(EXAMPLES / "run_once", self.folder)
        commands = self.folder / "bin"
        commands.mkdir()
        (commands / "gristmill").symlink_to(self.workplace.executable)
        self.environment = {
            **self.workplace.environment,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "GRISTMILL_TARGET": target.name,
        }
        target.worker("--process-count", "1")
        target.reducer()

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def call(self, name: str = "day-1", *options: str) -> subprocess.Popen[str]:
        return self.start("./run_once", name, "job.yaml", "--set", f"output=out/{name}", *options)

    def held_call(self, position: int) -> subprocess.Popen[str]:
        """Returns a call whose job holds this file."""
        self.mark("hold", position)
        called = self.call()
        self.wait_until_held()
        return called

    def ended(self, process: subprocess.Popen[str], status: int) -> str:
        printed, _ = process.communicate(timeout=120)
        assert process.returncode == status, printed
        return printed

    def mark(self, kind: str, position: int) -> None:
        (self.folder / f"{kind}-{position:03}.txt").touch()

    def runs(self) -> Counter[str]:
        return Counter(fact["file"] for fact in self.workplace.recorded("run"))

    def wait_until_held(self) -> None:
        wait_until(lambda: self.workplace.recorded("held"), "a mini-batch that waits")

    def jobs(self) -> int:
        return len(list((self.target.folder / "store/jobs").iterdir()))

    def state(self, name: str = "day-1") -> str:
        return self.target.status(name)["state"]

    def lines(self, name: str = "day-1") -> list[str]:
        (file,) = (self.folder / "out" / name).iterdir()
        return file.read_text().splitlines()


ONCE = {f"{position:03}.txt": 1 for position in range(FILES)}


@pytest.fixture
def pipeline(sqlite):
    return Pipeline(sqlite)


def test_failed_job_is_continued_and_a_completed_one_runs_nothing(pipeline):
    pipeline.mark("bad", 3)
    assert "ValueError: bad" in pipeline.ended(pipeline.call(), FAILED)
    before = pipeline.runs()
    (pipeline.folder / "bad-003.txt").unlink()
    for _ in range(2):
        pipeline.ended(pipeline.call(), COMPLETED)
    assert pipeline.runs() - before == {"003.txt": 1}, "only what failed runs again, and once"
    assert pipeline.jobs() == 1 and pipeline.lines() == sorted(ONCE)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_signal_cancels_the_job_and_the_next_call_continues_it(pipeline, sent):
    called = pipeline.held_call(2)
    # Airflow signals the whole group, the runner of GitHub the script.
    os.killpg(called.pid, sent) if sent == signal.SIGTERM else called.send_signal(sent)
    pipeline.ended(called, CANCELED)
    assert pipeline.state() == "Canceled"
    go(pipeline.workplace)
    committed = pipeline.runs() - Counter({"002.txt": 1, "003.txt": 1})
    pipeline.ended(pipeline.call(), COMPLETED)
    assert {file: count for file, count in pipeline.runs().items() if file in committed} == committed
    assert pipeline.jobs() == 1 and pipeline.lines() == sorted(ONCE)


def test_killed_call_is_followed_by_the_next(pipeline):
    called = pipeline.held_call(0)
    os.killpg(called.pid, signal.SIGKILL)
    called.communicate()
    wait_until(lambda: pipeline.state() == "Running", "a job that does not need its caller")
    following = pipeline.call()
    go(pipeline.workplace)
    pipeline.ended(following, COMPLETED)
    assert pipeline.runs() == ONCE and pipeline.jobs() == 1


def test_calls_at_the_same_time_start_one_job(pipeline):
    """The target may cancel the jobs of all of them: then the scheduler calls again."""
    calls = [pipeline.call() for _ in range(3)]
    for process in calls:
        process.communicate(timeout=120)
    statuses = {process.returncode for process in calls}
    assert statuses in ({COMPLETED}, {BUSY}, {COMPLETED, BUSY})
    pipeline.ended(pipeline.call(), COMPLETED)
    assert pipeline.runs() == ONCE, "the target has canceled every other job before it ran anything"
    listed = pipeline.target.command("jobs", "--json", "--state", "completed", expect=0).stdout
    assert len(json.loads(listed)) == 1


def test_job_that_cannot_start_is_told_apart(pipeline):
    called = pipeline.held_call(0)
    assert '"exit_status":75' in pipeline.ended(pipeline.call("day-2", "--set", "output=out/day-1"), BUSY)
    go(pipeline.workplace)
    pipeline.ended(called, COMPLETED)
    pipeline.ended(pipeline.call("day-3", "--set", "mini_batch_size=none"), INVALID)
    pipeline.ended(pipeline.start("./run_once", "day-4"), INVALID)
    pipeline.ended(pipeline.start("./run_once", "day-4", "job.yaml", GRISTMILL_TARGET="elsewhere"), INVALID)
    assert pipeline.jobs() == 1


def here(pipeline: Pipeline, text: str) -> str:
    """Returns commands of an example with the places of this test."""
    return re.sub(r"s3://our-results/score/", "out/", text).replace("/srv/score", str(pipeline.folder))


def test_line_of_the_crontab(pipeline):
    """cron replaces `\\%` and gives the rest to the shell, with the variables of the file."""
    text = (EXAMPLES / "crontab").read_text()
    shell = re.search("^SHELL=(.*)$", text, re.MULTILINE)[1]
    (line,) = [line for line in text.splitlines() if re.match(r"[\d*]", line)]
    command = line.split(None, 5)[5]
    assert "%" not in command.replace(r"\%", ""), "cron would make it a line break"
    command = here(pipeline, command.replace(r"\%", "%")).replace("600", "0.1")

    pipeline.ended(pipeline.start(shell, "-c", command), COMPLETED)
    (folder,) = (pipeline.folder / "out").iterdir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", folder.name)
    assert pipeline.runs() == ONCE
    # A target that does not answer is asked again, a job that failed is not.
    counted = pipeline.folder / "calls"
    for status, calls in ((1, 4), (BUSY, 4), (FAILED, 1), (INVALID, 1)):
        counted.write_text("")
        (pipeline.folder / "run_once").write_text(f"#!/bin/sh\necho >>calls\nexit {status}\n")
        pipeline.ended(pipeline.start(shell, "-c", command), status)
        assert counted.read_text().count("\n") == calls


def test_commands_of_the_workflow(pipeline):
    """The runner gives them to `bash -e`, and runs the last one after a cancellation."""
    workflow = YAML(typ="safe").load(EXAMPLES / "github-actions.yml")
    (job,) = workflow["jobs"].values()
    *_, runs, cancels = [step for step in job["steps"] if "run" in step]
    assert cancels["if"] == "cancelled()"
    name = job["env"]["JOB"].replace("${{ github.run_id }}", "17")
    pipeline.mark("hold", 0)
    started = pipeline.start("bash", "-e", "-c", here(pipeline, runs["run"]), JOB=name)
    pipeline.wait_until_held()
    canceling = pipeline.start("bash", "-e", "-c", cancels["run"], JOB=name)
    pipeline.ended(canceling, COMPLETED)
    pipeline.ended(started, CANCELED)
    go(pipeline.workplace)
    # "Re-run failed jobs"
    pipeline.ended(pipeline.start("bash", "-e", "-c", here(pipeline, runs["run"]), JOB=name), COMPLETED)
    assert pipeline.jobs() == 1 and pipeline.lines(name) == sorted(ONCE)


def command_of_the_dag(pipeline: Pipeline, day: str) -> str:
    tree = ast.parse((EXAMPLES / "airflow_dag.py").read_text())
    compile(tree, "airflow_dag.py", "exec")
    (operator,) = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "BashOperator"
    ]
    command = next(ast.literal_eval(keyword.value) for keyword in operator.keywords if keyword.arg == "bash_command")
    command = here(pipeline, command.replace("{{ ds }}", day))
    return command.replace(f"inputs.rows.path=s3://our-data/{day}/*.csv", "inputs.data.path=data")


def test_command_of_the_dag(pipeline):
    pipeline.ended(pipeline.start("bash", "-c", command_of_the_dag(pipeline, "2026-11-28")), COMPLETED)
    assert pipeline.runs() == ONCE and pipeline.lines("2026-11-28") == sorted(ONCE)
    # Another try would end the same.
    wrong = command_of_the_dag(pipeline, "2026-11-29").replace("job.yaml", "missing.yaml")
    pipeline.ended(pipeline.start("bash", "-c", wrong), INVALID)


def test_airflow_that_kills_the_task_cancels_the_job(pipeline):
    """It signals the group of the shell, which ends at once."""
    pipeline.mark("hold", 2)
    task = pipeline.start("bash", "-c", command_of_the_dag(pipeline, "2026-11-28"))
    pipeline.wait_until_held()
    os.killpg(task.pid, signal.SIGTERM)
    pipeline.ended(task, -signal.SIGTERM)
    assert pipeline.state("score-2026-11-28") == "Canceled"
