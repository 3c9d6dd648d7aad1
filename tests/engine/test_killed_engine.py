"""Kills the engine itself: committed work stays, other work runs again, and the output is the same."""

import fcntl
import os
import re
import signal
import subprocess

import pytest

from harness import file_names, go, is_alive, wait_until

COUNTS_RUNS = """
    import os
    from recorder import record, recorded
    record("import")
    def run(files):
        name = os.path.basename(files[0])
        # One mini-batch needs a second try, so that the agent publishes a descriptor again.
        if name == "016.txt" and not recorded("failed"):
            record("failed")
            raise ValueError("fails at first")
        record("run", file=name)
        # Some rows are small enough to travel in messages, some become parts.
        size = 300_000 if name.endswith("7.txt") else 5
        return [f"{name} {'x' * size}"]
"""
HOLDS_AT_ONE = """
    import os
    from recorder import record, wait_for
    def run(files):
        name = os.path.basename(files[0])
        if name == os.environ["HOLD"]:
            record("held")
            wait_for(lambda: False)
        record("run", file=name)
        return [f"{name} {'x' * (300_000 if name.endswith('7.txt') else 5)}"]
"""
FILES = 30


def expected_output():
    return "".join(
        f"{number:03}.txt {'x' * (300_000 if number % 10 == 7 else 5)}\n" for number in range(FILES)
    ).encode()


def runs_of(workplace):
    return [fact["file"] for fact in workplace.recorded("run")]


def test_crash_at_any_step_loses_no_committed_work(workplace, crash_point):
    """The engine kills itself at that step; `retry` finishes the job, and committed work does not run again."""
    workplace.data(FILES)
    job = workplace.job(COUNTS_RUNS, process_count_per_node=2, run_max_try=3)
    job_id = job.crash(crash_point)
    output = workplace.folder / "output" / "rows.txt"
    assert not output.exists() or output.read_bytes() == expected_output(), "whole or not at all"
    before = runs_of(workplace)

    ended = job.retry(job_id)
    assert ended.output == expected_output()
    assert ended.items == (FILES, FILES, 0)
    assert ended.mini_batches == (FILES, FILES, 0)
    rows = [row for row in ended.attempts() if row["Status"] == "RUN_DONE"]
    assert len({row["Mini-batch Id"] for row in rows}) == FILES
    assert os.listdir(workplace.folder / "output") == ["rows.txt"]
    after = runs_of(workplace)[len(before) :]
    if "nothing to do" in ended.stderr:
        assert after == []
    else:
        kept = re.findall(r"(\d+) mini-batch(?:es)? (?:is committed|are committed|had been announced)", ended.stderr)
        assert len(after) == FILES - sum(map(int, kept)), f"what is committed does not run again: {ended.stderr}"
        if not after:
            assert "no result yet" not in ended.stderr, "there are no others"
        if set(before) & set(after):
            assert re.search("runs? again", ended.stderr), "the user reads why mini-batches run again"


@pytest.mark.parametrize("committed", [1, 12, 29])
def test_sigkill_while_running(workplace, committed):
    workplace.data(FILES)
    job = workplace.job(HOLDS_AT_ONE)
    job_id = job.interrupt(f"{committed:03}.txt", committed)
    first = runs_of(workplace)
    assert len(first) == committed

    ended = job.run(HOLD="none")
    assert ended.job_id == job_id
    assert job_id in ended.stderr, "it says which job it continues"
    assert ended.output == expected_output()
    assert sorted(runs_of(workplace)) == file_names(FILES), "each ran exactly once"


def test_mini_batch_that_kills_the_engine_every_time_fails(workplace):
    """What the engine holds when it is killed has one more lost delivery, and what it has only in its queue has not."""
    workplace.data(FILES)
    job = workplace.job(HOLDS_AT_ONE, lost_delivery_max=2, process_count_per_node=1, error_threshold=-1)
    job_id = job.interrupt("004.txt", 4)
    for lost in (1, 2):
        running = workplace.start("retry", job_id, HOLD="004.txt")
        pid = wait_until(lambda: workplace.recorded("held")[lost:], "it holds again")[0]["pid"]  # noqa: B023
        running.kill(pid)
    ended = job.retry(job_id, HOLD="004.txt")
    assert re.search(r"mini-batch(es)? w(as|ere) interrupted with (its|their) node", ended.stderr), ended.stderr
    assert ended.output == b"".join(line for line in expected_output().splitlines(True) if b"004.txt" not in line)
    assert "mini-batch 4 was lost with its node 3 times (limit 2)" in ended.log("job_error.txt")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_signal_leaves_a_resumable_job(workplace, number):
    """Ctrl-C, a machine that shuts down, a closed terminal: no Python process is left, and `retry` runs the rest."""
    workplace.data(FILES)
    script = """
        import os, time
        from recorder import record
        def run(files):
            record("run", file=os.path.basename(files[0]))
            time.sleep(float(os.environ["SECONDS"]))
            return [os.path.basename(file) for file in files]
    """
    job = workplace.job(script, process_count_per_node=2)
    running = job.start(SECONDS="0.5")
    running.wait_for_record("run", 6)
    running.send(number)
    canceled = running.wait()
    assert canceled.exit_status == 130, str(canceled)
    assert canceled.state == "Canceled" and f"{number.name}: stopping" in canceled.stderr
    assert not (workplace.folder / "output" / "rows.txt").exists()
    assert not any(is_alive(pid) for pid in {fact["pid"] for fact in workplace.recorded("run")})
    assert 0 < canceled.mini_batches[1] < FILES

    before = len(runs_of(workplace))
    ended = job.retry(canceled.job_id, SECONDS="0")
    assert ended.lines == file_names(FILES)
    assert len(runs_of(workplace)) - before <= FILES - canceled.mini_batches[1]


def test_second_signal_ends_the_writing_of_the_output(workplace):
    workplace.data(2)
    script = """
        import os
        from recorder import record, recorded, wait_for
        def run(files):
            name = os.path.basename(files[0])
            if name == "001.txt":
                record("held")
                wait_for(lambda: recorded("go"))
            return [name + " " * 300_000]
    """
    job = workplace.job(script)
    running = job.start()
    running.wait_for_record("held")
    (job_id,) = workplace.job_ids()
    wait_until(lambda: workplace.ended_mini_batches(job_id) == 1, "a committed mini-batch")
    (part,) = (workplace.home / "jobs" / job_id / "parts").iterdir()
    kept = part.rename(workplace.folder / "kept")
    # Opening a FIFO blocks until another process opens it for writing.
    os.mkfifo(part)
    go(workplace)
    wait_until(lambda: workplace.progress(job_id).get("step") == "writing the output", "the output is being written")
    running.send(signal.SIGINT)
    wait_until(lambda: b"again: stop at once" in (running.process.stderr.readline() or b""), "the first signal")
    running.send(signal.SIGINT)
    canceled = running.wait()
    assert (canceled.exit_status, canceled.state) == (130, "Canceled"), str(canceled)
    assert canceled.cause == "canceled while the output was being written; no result is lost"
    assert not (workplace.folder / "output" / "rows.txt").exists()
    part.unlink()
    kept.rename(part)
    ended = job.retry(job_id)
    assert [line.strip() for line in ended.lines] == file_names(2)
    assert os.listdir(workplace.folder / "output") == ["rows.txt"], "nothing temporary is left"


def test_interrupt_ends_a_loop_of_a_shell(workplace):
    """A shell ends its loop only if the command ended by the signal."""
    workplace.data(2)
    job = workplace.job(HOLDS_AT_ONE)
    loop = f"for i in 1 2 3; do {workplace.executable} run {job.file} --fresh; done"
    shell = subprocess.Popen(
        ["bash", "-c", loop],
        cwd=workplace.folder,
        env={**workplace.environment, "HOLD": "001.txt"},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    workplace.started.append(shell)
    wait_until(lambda: workplace.recorded("held"), "a mini-batch that is held")
    os.killpg(shell.pid, signal.SIGINT)
    assert "SIGINT: stopping" in shell.communicate(timeout=60)[1].decode()
    assert shell.returncode == -signal.SIGINT and len(workplace.job_ids()) == 1


def test_run_continues_a_canceled_job(workplace):
    """After Ctrl-C, files of an editor and data of the script beside it do not matter: the command runs the rest."""
    workplace.data(4)
    writes = "\n    with open(os.path.join(os.path.dirname(__file__), 'seen.csv'), 'a') as seen: seen.write('x')\n"
    job = workplace.job(HOLDS_AT_ONE + writes)
    running = job.start(HOLD="002.txt")
    running.wait_for_record("held")
    running.send(signal.SIGINT)
    canceled = running.wait()
    assert canceled.exit_status == 130 and canceled.mini_batches[1] > 0, str(canceled)
    assert (workplace.folder / "code/seen.csv").read_text()
    workplace.write({"code/.entry.py.swp": "x", "code/4913": "", "code/entry.py~": "x"})
    ended = job.run(HOLD="none")
    assert ended.job_id == canceled.job_id and "do not run again" in ended.stderr, str(ended)
    assert len(ended.lines) == 4
    assert sorted(runs_of(workplace)) == file_names(4), "each ran exactly once"


def test_command_that_waits_for_another_one_says_so_and_can_be_stopped(workplace):
    workplace.data(1)
    job = workplace.job("def run(files): return files")
    workplace.home.mkdir(exist_ok=True)
    with (workplace.home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting, stopped = job.start(), job.start()
        said = stopped.process.stderr.readline().decode()
        assert "another command chooses or removes jobs" in said
        stopped.send(signal.SIGINT)
        ended = stopped.wait()
        assert ended.exit_status == 130 and "stopped before the job began" in ended.stderr, str(ended)
    assert waiting.wait().exit_status == 0
