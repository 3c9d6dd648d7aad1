"""Scripts, inputs and outputs that change between runs: no stale result is reused."""

import json
import signal
import subprocess

from harness import COMPLETED, wait_until

SAYS = """
    import os
    from recorder import record, wait_for
    def run(files):
        name = os.path.basename(files[0])
        if name == os.environ.get("HOLD"):
            record("held")
            wait_for(lambda: False)
        return [f"{name} VERSION"]
"""


def interrupt(workplace, job):
    """Kills the engine while the sixth of 10 mini-batches runs and the others are done, and returns the job id."""
    running = job.start(HOLD="005.txt")
    running.wait_for_record("held")
    (job_id,) = workplace.job_ids()

    def succeeded():
        status = json.loads(workplace.command("status", job_id, "--json").stdout)
        return status["progress"] and status["progress"]["mini_batches"]["succeeded"] >= 5

    wait_until(succeeded, "five mini-batches are committed")
    running.send(signal.SIGKILL)
    running.wait()
    return job_id


def test_overwritten_output_is_not_reused(workplace):
    workplace.data(4)
    old = workplace.job(SAYS.replace("VERSION", "old"), allow_reuse=True)
    assert not old.run().result["reused"]
    assert old.run().result["reused"]
    with (workplace.folder / "output" / "rows.txt").open("a") as output:
        output.write("tampered\n")
    again = old.run()
    assert not again.result["reused"]
    assert b"tampered" not in again.output


def test_retry_with_a_changed_script_says_so_and_is_never_reused(workplace):
    workplace.data(10)
    job = workplace.job(SAYS.replace("VERSION", "old"), allow_reuse=True, process_count_per_node=1)
    job_id = interrupt(workplace, job)
    changed = workplace.job(SAYS.replace("VERSION", "new"), allow_reuse=True, process_count_per_node=1)
    ended = changed.retry(job_id)
    assert ended.exit_status == COMPLETED
    assert "the script has changed since the job began" in ended.stderr
    versions = {line.split()[1] for line in ended.lines}
    assert versions == {"old", "new"}
    for version in ("old", "new"):
        fresh = workplace.job(SAYS.replace("VERSION", version), allow_reuse=True, process_count_per_node=1).run()
        assert not fresh.result["reused"]
        assert {line.split()[1] for line in fresh.lines} == {version}


def test_changed_inputs_make_another_job(workplace):
    workplace.data(10)
    job = workplace.job(SAYS.replace("VERSION", "x"), process_count_per_node=1)
    interrupt(workplace, job)
    (workplace.folder / "data" / "000a.txt").write_text("one more")
    ended = job.run()
    assert "the inputs have changed since job" in ended.stderr
    assert ended.items == (11, 11, 0)
    assert len(workplace.job_ids()) == 2


def test_inputs_without_items_are_named_as_the_cause(workplace):
    workplace.write({"data/empty.csv": "a,b\n"})
    inputs = [{"name": "data", "type": "tabular", "format": "csv", "path": "data"}]
    script = "def run(frame):\n    return frame\n"
    ended = workplace.job(script, inputs=inputs, mini_batch_size="1MB").run(expect=42)
    assert "The inputs contain no items" in ended.cause


def test_closed_pipe_does_not_stop_the_job(workplace):
    workplace.data(4)
    job = workplace.job(SAYS.replace("VERSION", "x"))
    job.run()
    for command in (["jobs"], ["run", "job.yaml", "--fresh"], ["plan", "job.yaml"]):
        engine = subprocess.Popen(
            [workplace.executable, *command],
            cwd=workplace.folder,
            env=workplace.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        engine.stdout.close()
        engine.stderr.close()
        assert engine.wait(60) == 0, command


def test_endless_thread_does_not_delay_the_job(workplace):
    workplace.data(2)
    script = """
        import threading, time
        def run(files):
            threading.Thread(target=time.sleep, args=(3600,)).start()
            return files
    """
    ended = workplace.job(script).run()
    assert ended.items == (2, 2, 0)
    assert "a thread or exit handler of the script has kept process" in ended.log("sys/node/0/_main.txt")
