"""Effects of scripts on the process that runs them, and their reports."""

import json
import os
import re
import signal
import subprocess

import pytest

from harness import go, is_alive, wait_until

CONNECTION = """
    import os, stat
    from recorder import record

    def sockets():
        found = []
        for name in os.listdir("/proc/self/fd"):
            try:
                if stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                    found.append(int(name))
            except OSError:
                pass
        return found

    def spoil(number):
        for fd in sockets():
            os.write(fd, GARBAGE[number])

    def run(files):
        number = int(os.path.basename(files[0])[:3])
        if number % 2 == 1:
            spoil(number // 2)
        record("run", file=files[0])
        return [os.path.basename(file) for file in files]
"""

GARBAGE = {
    "half a message": b"\x00\x10\x00\x00\x00\x00\x00\x00half",
    "the beginning of a length": b"\x07\x00",
    "an absurd length": b"\xff" * 8,
    "a message that means nothing": b"\x02\x00\x00\x00\x00\x00\x00\x00{}",
}


def test_damaged_connection_fails_one_mini_batch(workplace):
    """Each second file damages that of its process, in each way once."""
    workplace.data(2 * len(GARBAGE) + 1)
    script = CONNECTION.replace("GARBAGE", repr([*GARBAGE.values()]))
    ended = workplace.job(script, run_invocation_timeout=600).run()
    assert ended.mini_batches == (9, 5, 4)
    assert ended.lines == [f"{number:03}.txt" for number in range(0, 9, 2)]
    failed = [row for row in ended.attempts() if row["Status"] != "RUN_DONE"]
    for way, row in zip(GARBAGE, failed, strict=True):
        assert row["Error Category"] == "ConnectionDamaged", f"{way}: {row}"
        assert "descriptor that is not its own" in row["Error Message"], f"{way}: {row}"
        told = ended.log(f"user/error/0/{row['Process Name']}.txt")
        assert "connection to the process was damaged" in told, way


def test_connection_damaged_in_init_fails_the_job_with_that_cause(workplace):
    workplace.data(1)
    absurd = [GARBAGE["an absurd length"]]
    script = CONNECTION.replace("GARBAGE", repr(absurd)) + "\n    def init():\n        spoil(0)\n"
    ended = workplace.job(script).run(expect=42)
    assert "damaged in init()" in ended.cause, ended.cause


def test_closing_every_descriptor_is_named_and_low_ones_are_not_the_engines(workplace):
    workplace.data(4)
    script = """
        import os
        def run(files):
            for fd in range(3, 30):
                try:
                    os.write(fd, b"half a message")
                except OSError:
                    pass
            os.closerange(3, 65536 if files[0].endswith("002.txt") else 256)
            return files
    """
    ended = workplace.job(script).run()
    assert ended.mini_batches == (4, 3, 1)
    assert "closed the engine's connection" in ended.attempts()[2]["Error Message"]


def test_children_in_other_sessions_end_with_their_process(workplace):
    workplace.data(2)
    script = """
        import os, subprocess
        from recorder import record, recorded, wait_for
        def run(files):
            child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            # A daemon: without a parent, in its own session, without inherited descriptors.
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.closerange(0, 65536)
                    record("daemon")
                    os.execvp("sleep", ["sleep", "1000"])
                os._exit(0)
            wait_for(lambda: len(recorded("daemon")) > len(recorded("child")))
            record("child", child=child.pid)
            if files[0].endswith("001.txt"):
                os.kill(os.getpid(), 9)
            return files
    """
    ended = workplace.job(script).run()
    assert ended.mini_batches == (2, 1, 1)
    pids = [fact["child"] for fact in workplace.recorded("child")] + [
        fact["pid"] for fact in workplace.recorded("daemon")
    ]
    assert len(pids) == 4
    assert not any(map(is_alive, pids))


def test_children_in_other_sessions_end_with_a_killed_engine(workplace):
    workplace.data(1)
    script = """
        import subprocess, time
        from recorder import record
        def run(files):
            child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            record("child", child=child.pid)
            time.sleep(1000)
    """
    running = workplace.job(script).start()
    (fact,) = running.wait_for_record("child")
    running.send(signal.SIGKILL)
    running.process.wait()
    wait_until(lambda: not any(map(is_alive, (fact["pid"], fact["child"]))), "both end")


def test_session_from_outside_the_container_is_handled(workplace):
    workplace.data(2)
    script = """
        import os, subprocess
        from recorder import record
        def run(files):
            record("session", of_parent=os.getsid(os.getppid()))
            subprocess.Popen(["sleep", "1000"], start_new_session=True)
            return files
    """
    job = workplace.job(script)
    # In a container entered from outside, the kernel has no number for the outer session.
    namespace = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    command = [*namespace, workplace.executable, "run", job.file, "--json"]
    ended = subprocess.run(command, cwd=workplace.folder, env=workplace.environment, capture_output=True, timeout=100)
    assert ended.returncode == 0, ended.stderr.decode()
    assert {fact["of_parent"] for fact in workplace.recorded("session")} == {0}
    assert json.loads(ended.stdout)["mini_batches"]["succeeded"] == 2


ENDS = {
    "segfault": ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed (SIGSEGV) in run()"),
    "abort": ("os.abort()", "crashed (SIGABRT) in run()"),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "was killed (SIGKILL) in run(), "),
    "exit": ("os._exit(0)", "ended its own process in run(), with exit status 0"),
    "timeout": ("time.sleep(1000)", "run() did not end within 5 seconds"),
}


def test_end_of_a_process_is_reported_with_what_its_run_printed(workplace):
    workplace.data(len(ENDS))
    script = f"""
        import os, signal, sys, time
        print("printed before the run")
        def run(files):
            name = os.path.basename(files[0])
            print("opening the model for", name)
            print("it looks bad", file=sys.stderr)
            os.system("echo said by a child")
            the_last_step(int(name[:3]))
        def the_last_step(number):
            exec({[statement for statement, _ in ENDS.values()]!r}[number])
    """
    limits = {"run_invocation_timeout": 3, "arguments": ["--task_overhead_timeout", 2]}
    ended = workplace.job(script, **limits).run(expect=42)
    failed = {one["mini_batch"]: one for one in ended.result["failed_mini_batches"]}
    errors = ended.log("job_error.txt")
    for number, (way, row) in enumerate(zip(ENDS, ended.attempts(), strict=True)):
        assert ENDS[way][1] in row["Error Message"] and ENDS[way][1] in failed[number]["error"], f"{way}: {row}"
        assert ("by the kernel" in row["Error Message"]) == (way == "killed")
        printed = failed[number]["printed"].splitlines()
        assert printed == [f"opening the model for {number:03}.txt", "it looks bad", "said by a child"], way
        told = ended.log(failed[number]["log"])
        assert all(line in told and line in errors for line in printed), f"{way}: {told}\n{errors}"
        assert ("the_last_step" in told) == (way in ("segfault", "abort", "timeout")), "the stack of a crash"


STANDSTILLS = {
    "init": (
        """
        import os, time
        def init():
            print("connecting to the database")
            os.system("echo said by a child")
            time.sleep(1000)
        def run(files): return files
        """,
        {"run_invocation_timeout": 1},
        "No process finished init() within 33 seconds",
        "node 0, process000, in init() for ",
    ),
    "run": (
        """
        import os, threading, time
        print("printed before the run")
        def the_last_step():
            time.sleep(1000)
        def run(files):
            # As a client of mlflow does, which sends metrics.
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            print("connecting to the database")
            os.system("echo said by a child")
            the_last_step()
        """,
        {"run_invocation_timeout": 600, "arguments": ["--progress_update_timeout", 12]},
        "No progress update in 12 seconds",
        "mini-batch 0 on node 0, process000, in run() for ",
    ),
}


@pytest.mark.parametrize("place", STANDSTILLS)
def test_standstill_that_ends_the_job_quotes_what_was_printed(workplace, place):
    workplace.data(1)
    script, settings, cause, process = STANDSTILLS[place]
    ended = workplace.job(script, process_count_per_node=1, **settings).run(expect=42)
    assert ended.cause.startswith(cause) and process in ended.cause, ended.cause
    if place == "run":
        assert ended.cause.endswith(" in the_last_step."), "and not in the other thread"
    failure = ended.result["failures"][0]
    assert failure["error"].startswith(f"NoProgress: {process}"), failure
    assert failure["printed"].splitlines() == ["connecting to the database", "said by a child"]
    quoted = "    it printed: connecting to the database\n    it printed: said by a child\n"
    assert f"{ended.cause}\n{quoted}" in workplace.command("status", ended.job_id).stdout
    for report in ("job_error.txt", "job_result.txt"):
        assert "  printed last:\n    connecting to the database\n    said by a child\n" in ended.log(report), report


def started(ended):
    return ended.log("sys/node/0/_main.txt").count(" started, pid")


STARTS = {
    "wrong arguments": (
        """
        import argparse
        def init():
            parser = argparse.ArgumentParser()
            parser.add_argument("--x", required=True)
            parser.parse_known_args()
        def run(files): return files
        """,
        1,
        "the script called sys.exit(2): the following arguments are required: --x",
    ),
    "an exception": (
        """
        def init():
            print("loading the model")
            raise KeyError("depth")
        def run(files): return files
        """,
        2,
        "KeyError: 'depth'",
    ),
    "death": (
        """
        import os
        print("loading the model", flush=True)
        os.abort()
        def run(files): return files
        """,
        2,
        "crashed (SIGABRT) in the import",
    ),
    "no run()": (
        """
        print("loading the model")
        def run(files): return files
        globals().pop("run")
        """,
        1,
        "run",
    ),
    "an exit": (
        """
        print("loading the model")
        raise SystemExit(1)
        def run(files): return files
        """,
        2,
        "the script called sys.exit(1)",
    ),
}


@pytest.mark.parametrize("way, processes", [*((way, 1) for way in STARTS), ("an exception", 2)])
def test_permanent_start_failures_are_not_retried(workplace, way, processes):
    workplace.data(8)
    script, starts, named = STARTS[way]
    ended = workplace.job(script, process_count_per_node=processes, run_max_try=3).run(expect=42)
    assert started(ended) <= max(starts, processes), "one to confirm it, where there is but one process"
    assert named in ended.cause and "\n" not in ended.cause, ended.cause
    if "loading the model" in script:
        assert ended.result["failures"][0]["printed"].splitlines()[0] == "loading the model", ended.result


@pytest.mark.parametrize("processes", [1, 4])
def test_missing_module_is_said_once_with_its_remedy(workplace, processes):
    workplace.data(8)
    job = workplace.job("import no_such_module\ndef run(files): return files\n", process_count_per_node=processes)
    ended = workplace.command("run", job.file)
    assert ended.exit_status == 42, str(ended)
    (line,) = [line for line in (ended.stderr + ended.stdout).splitlines() if "no_such_module" in line]
    assert "No module named 'no_such_module' (interpreter: " in line, line
    assert "install the package there, or name another interpreter or a requirements file" in line, line
    assert "Open logs/user/error/0/process00" in line, line


def test_thread_that_outlives_shutdown_is_named(workplace):
    workplace.data(1)
    script = """
        import threading, time
        def init():
            threading.Thread(target=time.sleep, args=(1000,)).start()
        def run(files):
            return files
    """
    ended = workplace.job(script).run()
    assert "waiting for the Python processes to end" in ended.stderr
    assert "a thread or exit handler of the script" in ended.log("sys/node/0/_main.txt")


def test_long_start_is_reported(workplace):
    """Progress reports the import of the script and the creation of the environment before they end."""
    workplace.data(1)
    script = """
        import time
        from recorder import recorded, wait_for
        def slow_library():
            wait_for(lambda: recorded("go"))
        slow_library()
        def run(files):
            return files
    """
    running = workplace.job(script, run_invocation_timeout=600).start()

    def told():
        for log in workplace.home.glob("jobs/*/logs/sys/node/0/_main.txt"):
            text = log.read_text()
            if "long: node 0, process000" in text or "long: mini-batch" in text:
                return text
        return None

    text = wait_until(told, "the log names what takes long")
    assert "in the import of the entry script" in text and "in wait_for" in text
    go(workplace)
    assert running.wait().exit_status == 0


def test_interpreter_that_hangs_before_the_script_is_reported(workplace):
    workplace.data(1)
    go, python = workplace.folder / "go", workplace.environment["GRISTMILL_PYTHON"]
    os.mkfifo(go)
    # It sleeps until the test writes.
    waits = f'case "$1" in *bootstrap.py) read line <{go} ;; esac'
    workplace.write({"python": f'#!/bin/sh\n{waits}\nexec {python} "$@"\n'})
    (workplace.folder / "python").chmod(0o755)
    job = workplace.job("def run(files): return files", run_invocation_timeout=600)
    running = job.start(GRISTMILL_PYTHON=str(workplace.folder / "python"))

    def named():
        logs = workplace.home.glob("jobs/*/logs/sys/node/0/_main.txt")
        return any(re.search(r"in the start of the interpreter for \d+ s, it sleeps", log.read_text()) for log in logs)

    wait_until(named, "the log names what takes long")
    go.write_text("go\n")
    assert running.wait().exit_status == 0


def test_stopped_process_is_reported_and_times_out(workplace):
    workplace.data(1)
    script = """
        import os, signal
        from recorder import record
        def run(files):
            record("run")
            os.kill(os.getpid(), signal.SIGSTOP)
    """
    settings = {"run_invocation_timeout": 2, "arguments": ["--task_overhead_timeout", 1]}
    ended = workplace.job(script, **settings).run(expect=42)
    assert "it is stopped (SIGSTOP)" in ended.log("sys/node/0/_main.txt")
    (row,) = ended.attempts()
    assert row["Status"] == "RUN_TIMEOUT"
    assert not any(is_alive(fact["pid"]) for fact in workplace.recorded("run"))


def test_script_cannot_take_memory_from_under_the_worker(workplace):
    """Shared memory that has become too short kills its readers: here it would be the worker with its processes."""
    workplace.write({"data/t.csv": "id\n" + "".join(f"{row}\n" for row in range(40_000))})
    script = """
        import os
        from recorder import record
        def run(frame):
            for process in (os.getpid(), os.getppid()):
                folder = f"/proc/{process}/fd"
                for name in os.listdir(folder):
                    file = os.path.join(folder, name)
                    try:
                        if os.readlink(file).startswith("/memfd:gristmill"):
                            record("found")
                            os.truncate(file, 0)
                            record("cut")
                    except OSError:
                        pass
            return [len(frame)] * len(frame)
    """
    inputs = [{"name": "table", "type": "tabular", "format": "csv", "path": "data/t.csv"}]
    ended = workplace.job(script, inputs=inputs, mini_batch_size="16KB").run()
    assert len(ended.lines) == 40_000
    assert workplace.recorded("found") and not workplace.recorded("cut")
