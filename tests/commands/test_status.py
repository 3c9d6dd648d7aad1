"""Every job reports its status: what it waits for, its progress, and its end, in words and as an exit status."""

from __future__ import annotations

import fcntl
import functools
import itertools
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import termios
import threading

import pytest

from harness import (
    BUSY,
    CANCELED,
    COMPLETED,
    ERROR,
    FAILED,
    HOLDS,
    INVALID,
    NOT_ENDED,
    Running,
    go,
    is_alive,
    wait_until,
    write_slow_package,
)
from http_server import HttpServer
from portal_client import FAILS_ON_ONE

ECHOES = "def run(files): return files"
SLEEPS = """
    import time
    from recorder import record
    def run(files):
        record("sleeps")
        time.sleep(600)
"""


def wait_until_running(target, job_id) -> None:
    """Waits until a reducer knows of a worker that runs a mini-batch of the job."""
    wait_until(lambda: target.progress(job_id).get("running"), "progress that names what runs")
    wait_until(lambda: target.status(job_id)["state"] == "Running", "a worker that the reducer knows of")


def test_job_waits_for_new_workers_after_theirs_are_killed(workplace, sqs):
    """The wait is longer than `progress_update_timeout`: time without workers does not count."""
    workplace.data(3)
    job = workplace.job(HOLDS, run_invocation_timeout=600, arguments=["--progress_update_timeout", 12])
    job_id = sqs.enqueue(job)
    sqs.reducer()
    worker = sqs.worker("--process-count", 1, GRISTMILL_LEASE_SECONDS="3", HOLD="001.txt")
    worker.wait_for_record("held")
    wait_until_running(sqs, job_id)
    worker.kill()

    # The schedule may know of it before the progress does, and says only that no worker is running.
    heard = "no worker has been heard from since "
    wait_until(lambda: "silent_since" in sqs.progress(job_id), "a missed worker")
    waiting = wait_until(lambda: (now := sqs.status(job_id))["hint"] and heard in now["hint"] and now, "a hint")
    assert waiting["state"] == "Waiting", waiting
    assert waiting["hint"].endswith(f"start one with: gristmill worker --target {sqs.name}"), waiting
    text = sqs.command("status", job_id, expect=0).stdout
    assert f"job {job_id} is waiting: no worker has been heard from since " in text, text
    assert "processes:" not in text, text
    silent = waiting["progress"]["silent_since"]
    written = wait_until(
        lambda: (at := sqs.progress(job_id)["at"]) - silent > 15_000 and at,
        "a reducer that has waited for longer than the timeout",
    )
    assert sqs.status(job_id)["result"] is None, written

    go(workplace)
    sqs.worker("--process-count", 1)
    result = sqs.wait_for_end(job_id)
    assert result["mini_batches"] == {"total": 3, "succeeded": 3, "failed": 0}


def test_killed_reducer_of_a_job_without_workers_is_named(workplace, sqlite):
    """Of jobs with workers, `test_portal_states.py` kills the roles."""
    workplace.data(2)
    job_id = sqlite.enqueue(workplace.job(ECHOES))
    reducer = sqlite.reducer()
    wait_until(lambda: sqlite.progress(job_id), "progress")
    wait_until(lambda: "no worker is running" in (sqlite.status(job_id)["hint"] or ""), "a job that a reducer knows")
    reducer.kill()
    expected = "no reducer has been heard from since "
    wait_until(lambda: expected in (sqlite.status(job_id)["hint"] or ""), expected)


STARTS = {"interpreter": "the start of the interpreter", "script": "the import of the entry script", "init": "init()"}


@pytest.mark.parametrize("where", STARTS)
def test_start_that_hangs_is_named(workplace, sqlite, where):
    workplace.data(1)
    script = """
        import os
        from recorder import recorded, wait_for
        def hang_in(where):
            if os.environ["WHERE"] == where:
                wait_for(lambda: recorded("go"))
        hang_in("script")
        def init(): hang_in("init")
        def run(files): return files
    """
    python = workplace.environment["GRISTMILL_PYTHON"]
    wait = 'while ! grep -q \'"go"\' "$RECORD" 2>/dev/null; do sleep 0.1; done'
    wrapper = f'#!/bin/sh\nif [ "$WHERE" = interpreter ]; then case "$1" in *bootstrap.py) {wait} ;; esac; fi\n'
    workplace.write({"python": f'{wrapper}exec {python} "$@"\n'})
    (workplace.folder / "python").chmod(0o755)
    job_id = sqlite.enqueue(workplace.job(script, run_invocation_timeout=600))
    sqlite.reducer()
    sqlite.worker("--process-count", 1, GRISTMILL_PYTHON=str(workplace.folder / "python"), WHERE=where)
    wait_until(lambda: sqlite.progress(job_id).get("waiting"), "the process that hangs")
    text = sqlite.command("status", job_id, expect=0).stdout
    assert f", process000, in {STARTS[where]} for " in text, text
    go(workplace)
    assert sqlite.wait_for_end(job_id)["items"]["succeeded"] == 1


def test_job_whose_script_hangs_still_fails(workplace, sqlite):
    """A live worker without progress is not the same as a missing worker."""
    workplace.data(1)
    job = workplace.job(HOLDS, run_invocation_timeout=600, arguments=["--progress_update_timeout", 5])
    job_id = sqlite.enqueue(job)
    sqlite.reducer()
    sqlite.worker("--process-count", 1)
    result = sqlite.wait_for_end(job_id, "Failed")
    assert "No progress update in 5 seconds" in result["cause"], result


def test_followed_job_reports_what_it_waits_for(workplace, sqlite):
    """`enqueue --wait` reports each reason when it begins."""
    workplace.data(2)
    followed = sqlite.start("enqueue", workplace.job(HOLDS, run_invocation_timeout=600).file, "--wait")
    job_id = followed.process.stderr.readline().decode().split()[-1]
    said = []

    def read(expected: str) -> None:
        for line in map(bytes.decode, followed.process.stderr):
            said.append(line)
            if expected in line:
                return
        raise AssertionError(f"{expected} is not in {said}")

    read("waiting: no reducer has looked at it yet; start one with: gristmill reducer --target sqlite")
    sqlite.reducer()
    read("waiting: no worker is running; start one with: gristmill worker --target sqlite")
    worker = sqlite.worker("--process-count", 1, GRISTMILL_LEASE_SECONDS="3")
    worker.wait_for_record("held")
    wait_until_running(sqlite, job_id)
    worker.kill()
    read("waiting: no worker has been heard from since ")
    go(workplace)
    sqlite.worker("--process-count", 1)
    ended = followed.wait()
    assert ended.exit_status == COMPLETED, ended
    reasons = [re.split("; | since ", line)[0] for line in said if line.startswith("waiting: ")]
    assert all(before != after for before, after in itertools.pairwise(reasons)), said


def test_status_of_a_killed_job_counts_committed_mini_batches(workplace):
    """This holds even if the engine was killed before it could write its progress: here it is absent, and there old."""
    workplace.data(200)
    job_id = workplace.job(HOLDS, run_invocation_timeout=600).interrupt("137.txt", 137)
    there = workplace.folder / "there"
    shutil.copytree(workplace.home, there)
    (workplace.home / "jobs" / job_id / "progress.json").unlink()
    old = there / "jobs" / job_id / "progress.json"
    nothing = {"total": 0, "succeeded": 0, "failed": 0}
    old.write_text(json.dumps({**json.loads(old.read_text()), "mini_batches": nothing, "items": nothing}))
    for home in (workplace.home, there):
        command = functools.partial(workplace.command, GRISTMILL_HOME=str(home))
        text = command("status", job_id).stdout
        interrupted = f"job {job_id} is interrupted: the process that ran it has ended; continue with: gristmill retry"
        assert interrupted in text, text
        assert "mini-batches: 137 of 200 succeeded, 0 failed" in text, text
        shown = json.loads(command("status", job_id, "--json").stdout)["progress"]
        assert shown["mini_batches"] == {"total": 200, "succeeded": 137, "failed": 0}
        assert (shown["running"], shown["processes"], shown["nodes_at_work"]) == ([], 0, 0)
        assert re.search(rf"{job_id} +Interrupted .* 137/200 ", command("jobs").stdout)
        waited = command("status", job_id, "--wait")
        assert waited.exit_status == NOT_ENDED and "is interrupted" in waited.stdout, str(waited)
        canceled = command("cancel", job_id)
        assert "mini-batches: 137 of 200 succeeded" in canceled.stdout, str(canceled)


def test_stopped_engine_is_neither_running_nor_stalled(workplace):
    """Time in which the engine is stopped (Ctrl-Z, a frozen container, a sleeping laptop) does not count."""
    workplace.data(2)
    job = workplace.job(HOLDS, run_invocation_timeout=600, arguments=["--progress_update_timeout", 8])
    running = job.start()
    (held,) = running.wait_for_record("held")
    (job_id,) = workplace.job_ids()
    wait_until(lambda: workplace.progress(job_id), "written progress")
    running.send(signal.SIGSTOP)

    def stopped() -> str:
        text = workplace.command("status", job_id).stdout
        return text if "is waiting: the process that runs it has not been heard from since " in text else ""

    assert "Ctrl-Z" in wait_until(stopped, "a missed engine")
    running.send(signal.SIGCONT)
    assert is_alive(held["pid"])
    go(workplace)
    assert running.wait().exit_status == COMPLETED


def test_every_exit_status(workplace):
    """Runs a command for each row of the table in COMMANDS.md that a command can produce."""
    workplace.data(4)

    def status(*arguments: object) -> int:
        return workplace.command(*arguments).exit_status

    completed = workplace.job(ECHOES, name="completed", file="completed.yaml", output="completed")
    assert status("run", completed.file) == COMPLETED
    failed = workplace.job(FAILS_ON_ONE, name="failed", file="failed.yaml", output="failed", error_threshold=0)
    assert status("run", failed.file) == FAILED
    held = workplace.job(
        HOLDS, run_invocation_timeout=600, name="held", file="held.yaml", output="held", entry_script="held.py"
    )
    running = held.start()
    running.wait_for_record("held")
    assert status("status", "held") == COMPLETED, "the command succeeded"
    assert status("status", "held", "--wait", "--timeout", 0) == NOT_ENDED
    assert status("status", "held", "--wait", "--timeout", 1) == NOT_ENDED
    assert status("run", held.file) == BUSY
    assert status("retry", "held") == BUSY
    running.send(signal.SIGINT)
    wait_until(lambda: b"stopping" in (running.process.stderr.readline() or b""), "the engine notices the signal")
    go(workplace)
    assert running.wait().exit_status == CANCELED
    for way in ("--wait", "--watch"):
        ended = {name: status("status", name, way) for name in ("completed", "failed", "held")}
        assert ended == {"completed": COMPLETED, "failed": FAILED, "held": CANCELED}, way
    killed = workplace.job(SLEEPS, name="killed", file="killed.yaml", output="killed", entry_script="sleeps.py").start()
    killed.wait_for_record("sleeps")
    killed.kill()
    for way in ("--wait", "--watch"):
        assert status("status", "killed", way) == NOT_ENDED, way
    assert status("status", "completed", "--wait", "--timeout", 0) == COMPLETED
    assert status("status", "failed") == COMPLETED, "the command succeeded"
    workplace.write({"bad.yaml": "name: bad\n"})
    for command in ("run", "validate", "plan"):
        assert status(command, "bad.yaml") == INVALID, command
    for usage in (["status"], ["status", "held", "--timeout", 1], ["no-such-command"]):
        assert status(*usage) == INVALID, usage
    for command in ("status", "logs", "cancel", "retry"):
        assert status(command, "no-such-job") == ERROR, command


def test_status_waits_for_the_end(workplace, sqlite):
    """This holds on this machine, and on a target, where Ctrl-C ends only the waiting."""
    workplace.data(2)
    running = workplace.job(HOLDS, run_invocation_timeout=600).start()
    running.wait_for_record("held")
    (job_id,) = workplace.job_ids()
    waiting = workplace.start("status", job_id, "--wait", "--json")
    there = sqlite.enqueue(workplace.job(ECHOES, name="there", file="there.yaml"))
    interrupted = sqlite.start("status", there, "--wait")
    wait_until(lambda: interrupted.process.poll() is None and sqlite.objects("open"), "an open job")
    go(workplace)
    assert running.wait().exit_status == COMPLETED
    ended = waiting.wait()
    assert ended.exit_status == COMPLETED and ended.result["result"]["state"] == "Completed", str(ended)
    # The signal handlers are installed before the first read of the store ends.
    wait_until(lambda: "SigCgt" in status_of(interrupted) and catches(interrupted, signal.SIGINT), "a handler")
    interrupted.send(signal.SIGINT)
    assert interrupted.wait().exit_status == CANCELED
    sqlite.reducer()
    sqlite.worker("--process-count", 1)
    assert sqlite.command("status", there, "--wait").exit_status == COMPLETED


def status_of(running: Running) -> str:
    with open(f"/proc/{running.process.pid}/status") as file:
        return file.read()


def catches(running: Running, number: signal.Signals) -> bool:
    (mask,) = re.findall(r"^SigCgt:\s*([0-9a-f]+)$", status_of(running), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.parametrize(("columns", "term"), [(20, "xterm"), (120, "xterm"), (80, "dumb")])
def test_progress_fits_the_terminal(workplace, columns, term):
    """A bar, or lines where the terminal cannot draw."""
    workplace.data(20)
    job = workplace.job(HOLDS, run_invocation_timeout=600)
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [workplace.executable, "run", job.file],
        cwd=workplace.folder,
        env={**workplace.environment, "TERM": term, "HOLD": "005.txt"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        start_new_session=True,
    )
    workplace.started.append(process)
    os.close(terminal)
    drawn = ""
    while piece := read_from(controller):
        drawn += piece
        if re.search(r"\b5( of |/)20", drawn) and not workplace.recorded("go"):
            go(workplace)
    os.close(controller)
    assert process.wait(60) == 0, drawn
    assert ("\x1b" in drawn) == (term != "dumb")
    frames = re.split(r"\r|\n|\x1b\[[0-9;?]*[A-Za-z]", drawn)
    frames = [frame for frame in frames if re.search(r"\d+ of 20|\d+/20", frame)]
    assert frames, drawn
    assert term == "dumb" or all(len(frame) <= columns for frame in frames), frames


def read_from(terminal: int) -> str:
    """Returns what a terminal shows next, or nothing after its end."""
    try:
        return os.read(terminal, 4096).decode(errors="replace")
    except OSError:
        return ""


def waits_for(workplace, running: Running, expected: str) -> None:
    """Waits until `status` of the only job names what its node is busy with, and since when."""

    def look():
        assert running.process.poll() is None, running.wait()
        waiting = [workplace.progress(job_id).get("waiting", []) for job_id in workplace.job_ids()]
        return any(expected in found.get("detail", "") for found in itertools.chain(*waiting))

    wait_until(look, expected)
    shown = json.loads(workplace.command("status", "test", "--json").stdout)["progress"]["waiting"]
    waiting = next(found for found in shown if expected in found.get("detail", ""))
    assert waiting["process"] == "" and waiting["seconds"] >= 1 and waiting["since"] > 0, waiting
    text = workplace.command("status", "test").stdout
    assert expected in text, text


def test_signal_stops_a_job_whose_environment_is_being_installed(workplace):
    workplace.data(1)
    package = write_slow_package(workplace)
    builder = package / "builder"
    running = workplace.job(ECHOES, environment="requirements.txt").start()
    try:
        waits_for(workplace, running, "making the Python environment")
        wait_until(lambda: builder.exists() and builder.read_text(), "pip builds the package")
        running.send(signal.SIGINT)
        assert running.wait().exit_status == CANCELED
        wait_until(lambda: not is_alive(int(builder.read_text())), "pip and its children have ended")
    finally:
        (package / "go").touch()


def test_download_that_takes_long_is_named(workplace):
    go = threading.Event()

    def slowly(request):
        if request.method == "GET":
            go.wait(60)
        return 200, {"Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}, b"data"

    with HttpServer(slowly) as server:
        url = f"{server.url}/slow.txt"
        script = "def run(files): return [open(file).read() for file in files]"
        job = workplace.job(script, inputs=[{"name": "data", "type": "file", "path": url}], run_invocation_timeout=600)
        running = job.start()
        waits_for(workplace, running, f"reading {url}")
        go.set()
        ended = running.wait()
        assert (ended.exit_status, ended.lines) == (COMPLETED, ["data"]), str(ended)
