"""Scripts that fail, hang, die or misbehave. A job always ends, with a cause."""

import json
import os
import re
import signal

import pytest

from harness import is_alive, wait_until

FAILS_ON_SOME = """
    def run(files):
        if any(file.endswith(("000.txt", "001.txt")) for file in files):
            raise ValueError(f"cannot read {files[0]}")
        return files
"""

# More mini-batches than the queue of a job has room for, which is 16 384.
LONG = 18_000

THRESHOLDS = {
    "within": ({"error_threshold": 2, "allowed_failed_count": 2, "allowed_failed_percent": 20}, "Completed"),
    "items": ({"error_threshold": 1}, "number of failed items is 2, which exceeds error threshold 1"),
    "mini-batches": ({"allowed_failed_count": 1}, "exceeds allowed failed count 1"),
    "percent": ({"allowed_failed_percent": 19.9}, "19.9"),
}


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_thresholds(workplace, threshold):
    workplace.data(10)
    settings, expected = THRESHOLDS[threshold]
    ended = workplace.job(FAILS_ON_SOME, **settings).start().wait()
    if expected == "Completed":
        assert (ended.exit_status, ended.state) == (0, "Completed"), str(ended)
        assert ended.mini_batches == (10, 8, 2)
        assert len(ended.lines) == 8
    else:
        assert (ended.exit_status, ended.state) == (42, "Failed"), str(ended)
        assert expected in ended.cause
        assert ended.cause in ended.log("job_result.txt")
        assert "cannot read" in ended.log("job_error.txt")
        assert not (workplace.folder / "output" / "rows.txt").exists()


def test_only_user_code_spends_tries(workplace):
    """Each way in which a try can fail, once; the second try succeeds, in a new process if the old one died."""
    ways = ["raise", "exit", "illegal", "sigkill", "os_exit", "segfault", "timeout", "fine"]
    workplace.write({f"data/{name}": name for name in ways})
    script = """
        import ctypes, os, signal, sys, time
        from recorder import record, recorded
        def run(files, context):
            way = os.path.basename(files[0])
            first = not any(fact["way"] == way for fact in recorded("run"))
            record("run", way=way, attempt=context.attempt, process=context.process_name)
            if not first or way == "fine":
                return [way]
            if way == "raise":
                raise ValueError("raised on purpose")
            if way == "exit":
                sys.exit(5)
            if way == "illegal":
                return None
            if way == "sigkill":
                os.kill(os.getpid(), signal.SIGKILL)
            if way == "os_exit":
                os._exit(3)
            if way == "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            sleep_for_too_long()

        def sleep_for_too_long():
            time.sleep(100)
    """
    job = workplace.job(script, run_max_try=2, run_invocation_timeout=3, arguments=["--task_overhead_timeout", 2])
    ended = job.run()
    assert ended.lines == sorted(ways)
    assert ended.mini_batches == (8, 8, 0)

    runs = workplace.recorded("run")
    for way in ways:
        attempts = [fact["attempt"] for fact in runs if fact["way"] == way]
        assert attempts == ([1] if way == "fine" else [1, 2]), way

    by_name = {}
    for row in ended.attempts():
        by_name.setdefault(os.path.basename(row["Mini-batch Detail"]), []).append(row)
    statuses = {name: rows[0]["Status"] for name, rows in by_name.items()}
    assert statuses["raise"] == statuses["exit"] == statuses["illegal"] == "RUN_EXCEPTION"
    assert statuses["timeout"] == "RUN_TIMEOUT"
    assert {statuses[name] for name in ("sigkill", "os_exit", "segfault")} == {"PROCESS_DIED"}
    assert "raised on purpose" in by_name["raise"][0]["Error Message"]
    assert by_name["raise"][0]["Error Category"] == "ValueError"
    assert by_name["exit"][0]["Error Category"] == "SystemExit"

    main = ended.log("sys/node/0/_main.txt")
    for code in (-9, 3, -11):
        assert f"exits with returncode {code}." in main
    # Four processes died or were killed, and each was replaced under the next number.
    assert {fact["process"] for fact in runs} == {f"process{number:03}" for number in range(5)}
    errors = ended.log("user/error/**/*.txt")
    assert "sleep_for_too_long" in errors, "the stack at the moment of the timeout"
    timeout = by_name["timeout"][0]["Error Message"]
    assert "run_invocation_timeout" in timeout and "3 s" in timeout, timeout


def test_timeout_kills_the_whole_process_group(workplace):
    workplace.data(1)
    script = """
        import signal, subprocess, time
        from recorder import record
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        def init():
            child = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 1000"])
            record("child", child=child.pid)
        def run(files):
            time.sleep(1000)
    """
    # The same limit holds for init(), which a busy machine starts late.
    settings = {"run_invocation_timeout": 1, "run_max_try": 1, "arguments": ["--task_overhead_timeout", 5]}
    workplace.job(script, **settings).run(expect=42)
    # The replacement of the first may have started as well.
    pids = [fact[key] for fact in workplace.recorded("child") for key in ("pid", "child")]
    assert pids
    wait_until(lambda: not any(map(is_alive, pids)), "all are killed")


def test_no_progress_names_what_the_job_waits_for(workplace):
    """`status` shows which mini-batch waits where long before the job fails."""
    workplace.data(1)
    script = """
        import time
        from recorder import record
        def run(files):
            record("run")
            wait_for_a_lock_that_nobody_opens()
        def wait_for_a_lock_that_nobody_opens():
            time.sleep(1000)
    """
    running = workplace.job(script, run_invocation_timeout=600).start()
    running.wait_for_record("run")
    (job_id,) = workplace.job_ids()
    lock = "wait_for_a_lock_that_nobody_opens"
    wait_until(lambda: lock in str(workplace.progress(job_id).get("waiting")), "the progress names the stack")
    text = workplace.command("status", job_id).stdout
    assert lock in text and "run()" in text and "process000" in text, text
    running.send(signal.SIGINT)
    assert running.wait().exit_status == 130


FAILURES = {
    "exception": ("def run(files): raise ValueError('bad')", {}),
    "result": ("def run(files): return 5", {}),
    "timeout": (
        "import time\ndef run(files): time.sleep(100)",
        {"run_invocation_timeout": 1, "arguments": ["--task_overhead_timeout", 2]},
    ),
    "death": ("import os\ndef run(files): os.abort()", {}),
    "start": ("raise ValueError('bad')\ndef run(files): return files", {}),
    "warning": ("def run(files): return iter(files)", {}),
}


@pytest.mark.parametrize("way", FAILURES)
def test_every_file_that_a_report_names_exists_and_holds_something(workplace, way):
    workplace.data(2)
    script, settings = FAILURES[way]
    ended = workplace.job(script, **settings).start().wait()
    reports = [ended.stderr, ended.log("job_result.txt"), ended.log("job_error.txt") if ended.exit_status else ""]
    named = {
        path.rstrip(".")
        for report in reports
        for path in re.findall(r"(?:logs/)?((?:sys|user)/[\w./~-]+|job_(?:result|error)\.txt)", report)
    }
    assert named, reports
    for path in named:
        files = [file for file in ended.logs.glob(path) if file.is_dir() or file.stat().st_size]
        assert files, f"{path} is missing or empty; there are {ended.log_files()}"


def test_exception_in_shutdown_changes_no_result(workplace):
    workplace.data(2)
    script = """
        def run(files):
            return files
        def shutdown():
            raise RuntimeError("shutdown went wrong")
    """
    ended = workplace.job(script, error_threshold=0).run()
    assert len(ended.lines) == 2
    assert "shutdown went wrong" in ended.log("**/*.txt")


HOSTILE = """
    import os, signal, subprocess, sys
    from recorder import record
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def run(files):
        way = os.path.basename(files[0])
        if way == "3_closes_fd_1":
            os.close(1)
        elif way == "1_prints_megabytes":
            sys.stdout.write("x" * 20_000_000)
        elif way == "2_leaves_children":
            child = subprocess.Popen(["sleep", "1000"])
            detached = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            record("child", child=child.pid, detached=detached.pid)
        elif way == "4_closes_all":
            os.closerange(0, 3)
        return [way]

    def shutdown():
        record("shutdown")
"""


def test_hostile_scripts_do_not_disturb_the_job(workplace):
    # The order matters: nothing can print after the descriptors are closed.
    ways = ["1_prints_megabytes", "2_leaves_children", "3_closes_fd_1", "4_closes_all", "5_fine"]
    workplace.write({f"data/{name}": name for name in ways})
    ended = workplace.job(HOSTILE).run()
    assert ended.lines == ways
    assert ended.mini_batches == (5, 5, 0)
    (fact,) = workplace.recorded("child")
    wait_until(lambda: not is_alive(fact["child"]), "the script's child is killed")
    wait_until(lambda: not is_alive(fact["detached"]), "and the one that has left its session")


def test_failed_try_of_a_long_job_does_not_wait_for_room_in_the_queue(workplace):
    """The partitioner has filled the queue when a mini-batch must return to it."""
    workplace.data(LONG)
    script = """
        import time
        calls = 0
        def run(files):
            global calls
            calls += 1
            if calls < 300:
                time.sleep(0.005)
            elif calls < 303:
                raise ValueError("not yet")
            return files
    """
    ended = workplace.job(script, mini_batch_size=1, run_max_try=3, process_count_per_node=2).run()
    assert ended.mini_batches == (LONG, LONG, 0)
    status = json.loads(workplace.command("status", ended.job_id, "--json").stdout)
    assert status["progress"]["retries"] == 6
