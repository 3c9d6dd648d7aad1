"""Every job reports its status: what it waits for, its progress, and its end, in words and as an exit status."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading

import pytest

from harness import BUSY, CANCELED, COMPLETED, ERROR, FAILED, INVALID, NOT_ENDED, Running, go, is_alive, wait_until
from http_server import HttpServer

HOLDS = """
    import os
    from recorder import record, recorded, wait_for
    def run(files):
        name = os.path.basename(files[0])
        if name >= os.environ.get("HOLD", "000.txt"):
            record("held", pid=os.getpid())
            wait_for(lambda: recorded("go"))
        return [name]
"""
ECHOES = "def run(files): return files"
FAILS_ON_ONE = """
    def run(files):
        if any(file.endswith("003.txt") for file in files):
            raise ValueError("three is bad.")
        return files
"""


def kill(role: Running) -> None:
    role.send(signal.SIGKILL)
    role.process.wait()


def test_job_waits_for_new_workers_after_theirs_are_killed(workplace, sqs):
    """The wait is longer than `progress_update_timeout`: time without workers does not count."""
    workplace.data(3)
    job = workplace.job(HOLDS, run_invocation_timeout=600, arguments=["--progress_update_timeout", 12])
    job_id = sqs.enqueue(job)
    sqs.reducer()
    worker = sqs.worker("--process-count", 1, GRISTMILL_LEASE_SECONDS="3", HOLD="001.txt")
    worker.wait_for_record("held")
    wait_until(lambda: sqs.status(job_id)["state"] == "Running", "a worker that the reducer knows of")
    kill(worker)

    waiting = wait_until(lambda: (now := sqs.status(job_id))["state"] == "Waiting" and now, "a missed worker")
    assert waiting["hint"].startswith("no worker has been heard from since "), waiting
    assert waiting["hint"].endswith(f"start one with: gristmill worker --target {sqs.name}"), waiting
    text = sqs.command("status", job_id, expect=0).stdout
    assert f"job {job_id} is waiting: no worker has been heard from since " in text, text
    assert "processes:" not in text, text
    silent = waiting["progress"]["silent_since"]
    written = wait_until(
        lambda: (at := sqs.status(job_id)["progress"]["at"]) - silent > 15_000 and at,
        "a reducer that has waited for longer than the timeout",
    )
    assert sqs.status(job_id)["result"] is None, written

    go(workplace)
    sqs.worker("--process-count", 1)
    result = sqs.wait_for_end(job_id)
    assert result["mini_batches"] == {"total": 3, "succeeded": 3, "failed": 0}


def test_job_whose_script_hangs_still_fails(workplace, sqlite):
    """A live worker without progress is not the same as a missing worker."""
    workplace.data(1)
    job = workplace.job(HOLDS, run_invocation_timeout=600, arguments=["--progress_update_timeout", 5])
    job_id = sqlite.enqueue(job)
    sqlite.reducer()
    sqlite.worker("--process-count", 1)
    result = sqlite.wait_for_end(job_id, "Failed")
    assert "No progress update in 5 seconds" in result["cause"], result


def test_killed_reducer_is_reported(workplace, rabbitmq):
    workplace.data(2)
    job_id = rabbitmq.enqueue(workplace.job(HOLDS, run_invocation_timeout=600))
    reducer, worker = rabbitmq.reducer(), rabbitmq.worker("--process-count", 1)
    worker.wait_for_record("held")
    wait_until(lambda: rabbitmq.status(job_id)["state"] == "Running", "a worker that the reducer knows of")
    kill(reducer)
    waiting = wait_until(lambda: (now := rabbitmq.status(job_id))["state"] == "Waiting" and now, "a missed reducer")
    assert waiting["hint"].startswith("no reducer has been heard from since "), waiting
    assert "results wait in the queue" in waiting["hint"], waiting
    go(workplace)
    rabbitmq.reducer()
    rabbitmq.wait_for_end(job_id)


def test_followed_job_reports_what_it_waits_for(workplace, sqlite):
    """`enqueue --wait` reports each missing role once."""
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
    read("waiting: no worker has started; start one with: gristmill worker --target sqlite")
    worker = sqlite.worker("--process-count", 1, GRISTMILL_LEASE_SECONDS="3")
    worker.wait_for_record("held")
    wait_until(lambda: sqlite.status(job_id)["state"] == "Running", "a worker that the reducer knows of")
    kill(worker)
    read("waiting: no worker has been heard from since ")
    go(workplace)
    sqlite.worker("--process-count", 1)
    ended = followed.wait()
    assert ended.exit_status == COMPLETED, ended
    assert "".join(said).count("no worker has started") == 1, said


@pytest.mark.parametrize("progress", ["written before", "absent"])
def test_status_of_a_killed_job_counts_committed_mini_batches(workplace, progress):
    """This holds even if the engine was killed before it could write its progress."""
    workplace.data(200)
    running = workplace.job(HOLDS, run_invocation_timeout=600).start(HOLD="137.txt")
    (held,) = running.wait_for_record("held")
    (job_id,) = workplace.job_ids()

    def shown() -> dict:
        return json.loads(workplace.command("status", job_id, "--json").stdout)["progress"]

    wait_until(lambda: (now := shown()) and now["mini_batches"]["succeeded"] == 137, "137 committed mini-batches")
    kill(running)
    wait_until(lambda: not is_alive(held["pid"]), "the Python process ends with its engine")
    file = workplace.home / "jobs" / job_id / "progress.json"
    if progress == "absent":
        file.unlink()
    else:
        nothing = {"total": 0, "succeeded": 0, "failed": 0}
        file.write_text(json.dumps({**json.loads(file.read_text()), "mini_batches": nothing, "items": nothing}))
    text = workplace.command("status", job_id).stdout
    assert f"job {job_id} is interrupted: the process that ran it is gone; continue with: gristmill retry" in text, text
    assert "mini-batches: 137 of 200 succeeded, 0 failed" in text, text
    assert shown()["mini_batches"] == {"total": 200, "succeeded": 137, "failed": 0}
    assert re.search(rf"{job_id} +Interrupted .* 137/200 ", workplace.command("jobs").stdout)
    waited = workplace.command("status", job_id, "--wait")
    assert waited.exit_status == NOT_ENDED and "is interrupted" in waited.stdout, str(waited)
    canceled = workplace.command("cancel", job_id)
    assert "mini-batches: 137 of 200 succeeded" in canceled.stdout, str(canceled)


def test_stopped_engine_is_neither_running_nor_stalled(workplace):
    """Time in which the engine is stopped (Ctrl-Z, a frozen container, a sleeping laptop) does not count."""
    workplace.data(2)
    job = workplace.job(HOLDS, run_invocation_timeout=600, arguments=["--progress_update_timeout", 8])
    running = job.start()
    (held,) = running.wait_for_record("held")
    (job_id,) = workplace.job_ids()
    wait_until(lambda: '"at"' in workplace.command("status", job_id, "--json").stdout, "written progress")
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
    assert interrupted.wait().exit_status == NOT_ENDED
    sqlite.reducer()
    sqlite.worker("--process-count", 1)
    assert sqlite.command("status", there, "--wait").exit_status == COMPLETED


def status_of(running: Running) -> str:
    with open(f"/proc/{running.process.pid}/status") as file:
        return file.read()


def catches(running: Running, number: signal.Signals) -> bool:
    (mask,) = re.findall(r"^SigCgt:\s*([0-9a-f]+)$", status_of(running), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_partial_failure_heads_the_summary(workplace):
    """The exit status is 0, as in the original, and the summary begins with the failures."""
    workplace.data(7)
    job = workplace.job(FAILS_ON_ONE)
    ended = workplace.command("run", job.file)
    assert ended.exit_status == COMPLETED, str(ended)
    told = (
        "completed with failures: 1 of 7 mini-batches failed (ValueError: three is bad); see logs/job_error.txt; "
        "`error_threshold: 0` (items), `allowed_failed_count: 0` (mini-batches) or `fail_fast: N` (equal failures) "
        "fails such a job"
    )
    assert f" {told}.\n" in ended.stdout, str(ended)
    assert re.search(r"  failed: mini-batch 3 \(.*/003.txt\): ValueError: three is bad; open ", ended.stdout), str(
        ended
    )
    assert ".." not in ended.stdout.replace("...", ""), str(ended)
    again = job.run()
    assert again.result["headline"] == told
    [cause] = again.result["failures"]
    assert (cause["error"], cause["attempts"], cause["mini_batches"]) == ("ValueError: three is bad.", 1, [3])
    assert (again.logs / cause["log"]).stat().st_size > 0
    assert told in again.log("job_result.txt") and told in again.log("job_progress_overview.*")
    shown = workplace.command("status", again.job_id).stdout
    assert told in shown, shown
    limited = job.run("--set", "error_threshold=3")
    assert limited.result["headline"].endswith("; this is within the limits of the job"), limited.result


def test_job_without_any_success_names_the_cause(workplace):
    workplace.data(7)
    script = """
        def run(files):
            raise ValueError("never works.")
    """
    ended = workplace.job(script, run_max_try=2).run(expect=FAILED)
    start = "All 7 mini-batches failed; 14 of 14 attempts: ValueError: never works; open logs/"
    assert ended.cause.startswith(start) and ended.cause.endswith("."), ended.cause
    (log,) = re.findall(r"open logs/(\S+)\.$", ended.cause)
    assert "never works" in (ended.logs / log).read_text()


def test_mini_batches_with_a_try_left_are_counted(workplace):
    """The cause of the end is not hidden behind "0 failed"."""
    workplace.data(20)
    script = """
        import time
        def run(files):
            # As in the original, the reducer checks the limit every ten seconds.
            time.sleep(0.1)
            raise ValueError("not yet")
    """
    job = workplace.job(script, allowed_failed_count=2, run_max_try=1000, process_count_per_node=2)
    ended = job.run(expect=FAILED)
    assert "which exceeds allowed failed count 2. " in ended.cause, ended.cause
    assert re.search(r" \d+ of them failed a try and had another to come\.", ended.cause), ended.cause
    assert re.search(r"The first failed mini-batch is \d+ \(.*\.txt\), open logs/user/error/", ended.cause), ended.cause
    assert ended.result["retrying"] > 2 and ended.mini_batches[2] == 0, ended.result
    summary = workplace.command("status", ended.job_id).stdout
    assert re.search(r"mini-batches: 0 of 20 succeeded, 0 failed, \d+ failed a try and had tries left", summary)


def test_summary_shows_warnings(workplace):
    rows = "".join(f"{number}\n" for number in range(300))
    workplace.write({"data/one.csv": "value\n" + rows + "words\n"})
    job = workplace.job("def run(table): return table", inputs=[{"name": "data", "type": "tabular", "path": "data"}])
    ended = workplace.command("run", job.file)
    assert ended.exit_status == COMPLETED, str(ended)
    named = r'  warnings: 1\n    column "value": .*one\.csv, line 302: "words"\).* set columns: '
    assert re.search(named, ended.stdout), str(ended)


def seen_on_terminal(workplace, columns: int, arguments: list[object], until: bytes, **environment: str) -> bytes:
    """Returns a command's output on a terminal of this width; waiting scripts continue once `until` matches."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [str(workplace.executable), *map(str, arguments)],
        cwd=workplace.folder,
        env={**workplace.environment, "TERM": "xterm", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    drawn = bytearray()

    def read() -> None:
        while True:
            try:
                piece = os.read(controller, 4096)
            except OSError:
                return
            if not piece:
                return
            drawn.extend(piece)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        wait_until(lambda: re.search(until, drawn), f"{until!r} on the terminal")
    finally:
        go(workplace)
        process.wait(60)
        reader.join(10)
        os.close(controller)
    assert process.returncode == 0, drawn
    return bytes(drawn)


@pytest.mark.parametrize("columns", [20, 40, 120])
def test_bar_fits_the_terminal(workplace, columns):
    workplace.data(20)
    job = workplace.job(HOLDS, run_invocation_timeout=600)
    drawn = seen_on_terminal(workplace, columns, ["run", job.file], rb"\b5( of |/)20", HOLD="005.txt").decode()
    frames = re.split(r"\r|\n|\x1b\[[0-9;?]*[A-Za-z]", drawn)
    frames = [frame for frame in frames if re.search(r"\d+ of 20|\d+/20", frame)]
    assert frames, drawn
    assert all(len(frame) <= columns for frame in frames), frames
    assert not any("eta 0" in frame for frame in frames if "0 of 20" in frame), frames
    assert all(("5 of 20" in frame or "0 of 20" in frame) for frame in frames if columns >= 40 and "5" in frame)


def test_dumb_terminal_gets_lines(workplace):
    workplace.data(2)
    job = workplace.job(HOLDS, run_invocation_timeout=600)
    drawn = seen_on_terminal(workplace, 80, ["run", job.file], b" of 2 mini-batches", TERM="dumb")
    assert b"\x1b" not in drawn, drawn


def waits_for(workplace, running: Running, expected: str) -> None:
    """Waits until `status` of the only job names what its node is busy with, and since when."""

    def look():
        assert running.process.poll() is None, running.wait()
        shown = workplace.command("status", "test", "--json")
        progress = json.loads(shown.stdout)["progress"] if shown.exit_status == COMPLETED else None
        return next((found for found in (progress or {"waiting": []})["waiting"] if expected in found["detail"]), None)

    waiting = wait_until(look, expected)
    assert waiting["process"] == "" and waiting["seconds"] >= 1 and waiting["since"] > 0, waiting
    text = workplace.command("status", "test").stdout
    assert expected in text, text


def slow_environment(workplace) -> str:
    """Returns requirements whose installation waits until $GO exists, like that of a large environment."""
    workplace.write(
        {
            "package/pyproject.toml": """
                [build-system]
                requires = []
                build-backend = "backend"
                backend-path = ["."]
            """,
            "package/backend.py": """
                import os, time
                def build_wheel(*_, **__):
                    while not os.path.exists(os.environ["GO"]):
                        time.sleep(0.05)
                    raise RuntimeError("built for nothing")
            """,
            "requirements.txt": f"slow-package @ file://{workplace.folder}/package\n",
        }
    )
    return "requirements.txt"


def test_signal_stops_a_job_whose_environment_is_being_installed(workplace):
    workplace.data(1)
    go = workplace.folder / "go"
    running = workplace.job(ECHOES, environment=slow_environment(workplace)).start(GO=str(go))
    try:
        waits_for(workplace, running, "making the Python environment")
        running.send(signal.SIGINT)
        assert running.wait().exit_status == CANCELED
    finally:
        go.touch()


def test_environment_that_takes_long_to_install_is_named(workplace):
    workplace.data(1)
    go = workplace.folder / "go"
    running = workplace.job(ECHOES, environment=slow_environment(workplace)).start(GO=str(go))
    waits_for(workplace, running, "making the Python environment")
    go.touch()
    ended = running.wait()
    assert ended.exit_status == FAILED and "requirements.txt" in ended.cause, str(ended)


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
