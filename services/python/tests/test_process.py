"""Effects of user code on its process, as seen by the agent."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from agent import BOOTSTRAP, PREFIX, STACK_DUMP_SIGNAL

import gristmill


def test_basic_config_of_the_script_takes_effect(start):
    agent = start(
        """
        import logging, sys
        logging.basicConfig(level=logging.DEBUG, format="own %(message)s")
        def run(mini_batch):
            logging.debug("words")
            return mini_batch
        """
    )
    agent.run()
    assert agent.stdout() == "own words\n"


@pytest.mark.parametrize("environment, expected", [({}, "3"), ({"OMP_NUM_THREADS": "7"}, "7")])
def test_numeric_libraries_share_the_cores_by_default(start, monkeypatch, environment, expected):
    """The libraries read the variable when they are imported."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    agent = start(
        "import os\nTHREADS = os.environ['OMP_NUM_THREADS']\ndef run(files): print(THREADS, end=''); return files",
        environment=environment,
        threads=3,
    )
    agent.run()
    assert agent.stdout() == expected, "flushed after the run, even without a newline"


def test_log_files_are_capped_with_a_note(start):
    agent = start(
        """
        import sys
        def run(mini_batch):
            for number in range(1000): print("line", number)
            sys.stderr.buffer.write(b"y" * 5000)
            return mini_batch
        """,
        log_bytes_max=2000,
    )
    for _ in range(3):
        assert agent.run()["status"] == "succeeded"
    lines = agent.stdout().splitlines()
    assert len(agent.stdout()) < 2100
    assert lines[-1] == "[cut here: this file has reached its limit of 2000 bytes]"
    assert lines[-2].startswith("line "), "cut between lines"
    assert agent.stderr().count("cut here") == 1


def test_text_streams_are_real(start):
    agent = start(
        """
        import sys
        def run(mini_batch):
            sys.stdout.reconfigure(line_buffering=False)
            sys.stdout.buffer.write("\\u00e9\\n".encode())
            print("\\udc80 lone")
            sys.stdout.flush()
            return [sys.stdout.isatty(), sys.stdout.fileno() > 2, sys.stdout.encoding, sys.stdout is sys.__stdout__]
        """
    )
    assert agent.run()["rows"] == b"False\nTrue\nutf-8\nTrue\n"
    assert agent.stdout() == "é\n\\udc80 lone\n"


@pytest.mark.parametrize(
    "statement",
    [
        "os.close(1)",
        "os.close(2)",
        "sys.stdout.close()",
        "sys.stderr.close()",
        "sys.stdout.detach()",
        "sys.stdout = None",
        "sys.stdout = open(os.devnull, 'w')",
        "os.close(sys.stdout.fileno())",
        "del sys.stdout, sys.stderr",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "os.chdir('/')",
        "sys.argv.clear(); sys.path.clear()",
        "sys.setrecursionlimit(60)",
        "gc.disable()",
        "os.environ.clear()",
        "import builtins; builtins.print = None",
    ],
)
def test_changes_of_process_state_do_no_harm(start, statement):
    agent = start(f"import gc, os, signal, sys\ndef run(mini_batch):\n    {statement}\n    return mini_batch")
    assert agent.run(["a"])["rows"] == b"a\n"
    agent.run(["b"])
    agent.finish()


def test_closed_stdout_is_reopened_for_the_next_run(start):
    agent = start(
        "import sys\ndef run(mini_batch):\n    print(mini_batch)\n    sys.stdout.close()\n    return mini_batch"
    )
    assert [agent.run([name])["status"] for name in "abc"] == ["succeeded"] * 3
    assert agent.stdout() == "['a']\n['b']\n['c']\n"


def test_busy_process_ends_with_its_agent(start):
    agent = start(
        """
        import subprocess
        def run(mini_batch):
            child = subprocess.Popen(["sleep", "1000"])
            print(child.pid, flush=True)
            # A single call of native code, which keeps the lock.
            sum(range(10**14))
        """
    )
    agent.hand_over(agent.files(["a"]))
    agent.wait_for_phase("run", 1)
    while not agent.stdout():
        os.sched_yield()
    child = int(agent.stdout())
    agent.socket.close()
    assert agent.wait() == -signal.SIGKILL
    while is_running(child):
        os.sched_yield()


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split()[2] not in "ZX"
    except FileNotFoundError:
        return False


def test_idle_process_ends_with_its_agent(start):
    agent = start("def run(mini_batch): return mini_batch")
    agent.socket.close()
    assert agent.wait() in (-signal.SIGKILL, 82)


def test_status_page_shows_the_activity(start):
    agent = start(
        """
        import os
        def run(mini_batch):
            open(mini_batch[0]).read()
            return mini_batch
        """
    )
    agent.wait_for_phase("idle", 0)
    fifo = agent.folder / "fifo"
    os.mkfifo(fifo)
    agent.hand_over(agent.files([str(fifo)]))
    agent.wait_for_phase("run", 1)
    since = agent.status()[2]
    assert agent.run_since() == since
    fifo.write_text("go on")
    assert agent.receive()["status"] == "succeeded"
    agent.wait_for_phase("idle", 0)
    assert agent.status()[2] > since == agent.run_since()


def test_waiting_mini_batches_can_be_recalled(start):
    agent = start("def run(mini_batch):\n    open(mini_batch[0]).read()\n    return mini_batch")
    fifo = agent.folder / "fifo"
    os.mkfifo(fifo)
    agent.hand_over(agent.files([str(fifo)]), *(agent.files([os.devnull]) for _ in range(3)))
    agent.wait_for_phase("run", 1)
    agent.recall(2, 4)
    fifo.write_text("go on")
    events = [agent.receive() for _ in range(4)]
    assert [(event["frame"], event["sequence"]) for event in events] == [
        ("answered", 1), ("recalled", 2), ("recalled", 3), ("answered", 4),
    ]  # fmt: skip


def test_stacks_are_available_while_user_code_holds_the_interpreter(start):
    agent = start("def stuck():\n    sum(range(10**14))\ndef run(mini_batch): stuck()")
    agent.hand_over(agent.files(["a"]))
    agent.wait_for_phase("run", 1)
    stack = agent.logs / "sys/node/0/process000.stack.txt"
    while "in run" not in stack.read_text():
        os.kill(agent.process.pid, STACK_DUMP_SIGNAL)
        os.sched_yield()
    assert 'score.py", line 2 in stuck' in stack.read_text()


@pytest.mark.parametrize(
    "ending, status",
    [("return mini_batch", 0), ("raise ValueError", 1), ("import sys; sys.exit(7)", 7), ("os._exit(0)", 0)],
)
def test_forked_child_never_answers_for_its_parent(start, ending, status):
    agent = start(
        f"""
        import os
        def run(mini_batch):
            child = os.fork()
            if child == 0:
                print("child")
                {ending}
            _, status = os.waitpid(child, 0)
            return [os.WEXITSTATUS(status)] + mini_batch
        """
    )
    for name in "ab":
        assert agent.run([name])["rows"].decode() == f"{status}\n{name}\n"
    assert agent.stdout() == "child\n" * 2
    agent.finish()
    assert not (agent.logs / "user/error").exists()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_in_a_script(start, method):
    agent = start(
        f"""
        import multiprocessing
        from azureml_user.parallel_run import EntryScript
        def square(number): return number * number, EntryScript().agent_name
        def run(mini_batch):
            with multiprocessing.get_context("{method}").Pool(2) as pool:
                return pool.map(square, range(3))
        """
    )
    assert agent.run()["rows"] == b"(0, 'process000')\n(1, 'process000')\n(4, 'process000')\n"
    agent.finish()


def test_descriptors_of_the_agent_are_not_inherited(start):
    agent = start(
        """
        import os, subprocess
        def run(mini_batch):
            listing = subprocess.run(["sh", "-c", "ls -l /proc/self/fd"], stdout=subprocess.PIPE, close_fds=False)
            return [b"socket" in listing.stdout]
        """
    )
    assert agent.run()["rows"] == b"False\n"


def test_large_result_arrives_complete(start):
    agent = start("def run(mini_batch): return ['x' * 1000] * 20_000")
    assert agent.run()["rows"] == (b"x" * 1000 + b"\n") * 20_000


def test_frames_may_arrive_in_any_pieces_beside_signals_and_unknown_ones_end_the_process(start):
    agent = start(
        "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: None)\ndef run(mini_batch): return mini_batch"
    )
    body = json.dumps({"frame": "mini_batches", "mini_batches": [agent.files(["a" * 50])]}).encode()
    for byte in PREFIX.pack(len(body), 0) + body:
        agent.socket.sendall(bytes([byte]))
    assert agent.receive()["rows"] == b"a" * 50 + b"\n"
    for _ in range(50):
        os.kill(agent.process.pid, signal.SIGUSR1)
    assert agent.run(["a"])["rows"] == b"a\n"
    agent.send({"frame": "surprise"})
    assert agent.receive() is None
    assert agent.wait() == 70
    assert "surprise" in agent.stderr_of_descriptor()


def test_manual_start_prints_an_explanation():
    ended = subprocess.run([sys.executable, str(BOOTSTRAP)], capture_output=True, text=True, close_fds=True)
    assert ended.returncode == 72
    assert ended.stderr.startswith("gristmill: ") and ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "file, content, said",
    [
        ("_native.abi3.so", "no library", "cannot load the worker package"),
        ("__init__.py", '__version__ = "99.0.0"\n',
         f"extension is of version {gristmill.__version__} and its Python files are of 99.0.0"),
    ],
    ids=["unloadable", "another version"],
)  # fmt: skip
def test_unsuitable_extension_is_reported_in_one_line(tmp_path, file, content, said):
    package = tmp_path / "gristmill"
    shutil.copytree(BOOTSTRAP.parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / file).unlink()
    (package / file).write_text(content)
    with open(os.devnull, "r+b") as null:
        ended = subprocess.run(
            [sys.executable, str(package / "bootstrap.py")],
            capture_output=True, text=True, pass_fds=(3, 4),
            preexec_fn=lambda: (os.dup2(null.fileno(), 3), os.dup2(null.fileno(), 4)),
        )  # fmt: skip
    assert ended.returncode == 72
    assert said in ended.stderr and ended.stderr.count("\n") == 1


def test_failure_quotes_the_last_output_of_its_own_attempt(start):
    agent = start(
        """
        import sys
        print("at import")
        def run(mini_batch):
            for number in range(int(mini_batch[0])):
                print("line", number)
                print("error", number, file=sys.stderr)
            print("x" * int(mini_batch[1]) + mini_batch[2], end="")
            raise ValueError
        """
    )
    printed = [agent.run([count, "0", ""])["error"]["printed"].splitlines() for count in ("1", "0", "20")]
    assert printed[0] == ["line 0", "error 0"]
    assert printed[1] == []
    assert printed[2] == [f"{what} {number}" for what in ("line", "error") for number in range(15, 20)]
    assert "Printed last:\n  line 0\n  error 0\n" in agent.log("user/error/0/process000.txt")
    printed = agent.run(["0", "100000", "end"])["error"]["printed"]
    assert printed.endswith("xend") and len(printed) <= 2048


@pytest.mark.parametrize(
    "statement, chance",
    [
        ("import no_such_module", "perhaps"),
        ("open('/no/such/model')", "perhaps"),
        ("raise KeyError('model')", "perhaps"),
        ("raise ConnectionRefusedError('registry')", "likely"),
        ("raise TimeoutError", "likely"),
        ("exec('try:\\n    raise ConnectionError\\nexcept OSError as e:\\n    raise KeyError from e')", "likely"),
        ("raise MemoryError", "likely"),
        ("import sys; sys.exit(2)", "never"),
        ("exec('a b')", "never"),
    ],
)  # fmt: skip
def test_chance_of_another_start(start, statement, chance):
    agent = start(f"def init(): {statement}\ndef run(mini_batch): return mini_batch", ready=False)
    event = agent.receive()
    assert (event["frame"], event["chance"]) == ("init_failed", chance)


def test_table_needs_pandas_before_the_first_mini_batch(start):
    script = "import sys\nsys.path = [p for p in sys.path if '-packages' not in p]\ndef run(frame): return frame"
    event = start(script, ready=False, tabular=True).receive()
    assert (event["frame"], event["chance"], event["error"]["category"]) == ("init_failed", "never", "MissingPandas")
    assert f"run {sys.executable} -m pip install pandas" in event["error"]["message"]
    start(script)


def test_process_without_its_socket_still_ends_with_its_agent(start):
    agent = start("import os, time\ndef run(m): os.closerange(3, 65536); os.mkdir('closed'); time.sleep(1000)")
    agent.hand_over(agent.files(["a"]))
    while agent.process.poll() is None and not (agent.scratch / "closed").exists():
        os.sched_yield()
    agent.socket.close()
    assert agent.wait() == -signal.SIGKILL
