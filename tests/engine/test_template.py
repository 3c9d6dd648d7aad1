"""Processes that are forked from a template, an interpreter that has imported pandas, NumPy and pyarrow once."""

import os
import signal
from pathlib import Path

import pytest

from harness import CANCELED, go, is_alive, wait_until

MAIN = "sys/node/0/_main.txt"
ONCE = "imported pandas once for all processes"
ITSELF = "each process imports pandas itself"


def with_library(workplace, text, name="pandas"):
    """Returns the variables with which a module of this text is found before the installed one."""
    workplace.write({f"libraries/{name}.py": text})
    return {"PYTHONPATH": str(workplace.folder / "libraries")}


def test_forked_processes_differ_as_started_ones_do_and_see_their_gpus(workplace):
    workplace.data(8)
    script = """
        import os, random, tempfile
        import numpy
        import pandas as pd
        from recorder import record, recorded, wait_for

        def init():
            with open("/proc/self/env" "iron") as file:
                shown = [one for one in file.read().split(chr(0)) if one.startswith("GRISTMILL_PROCESS=")]
            record(
                "init", random=[random.random(), float(numpy.random.random())], folder=os.getcwd(), parent=os.getppid(),
                gpu=os.getenv("CUDA_VISIBLE_DEVICES"),
                session=os.getsid(0), marker=os.getenv("GRISTMILL_PROCESS"), shown=shown, descriptors=sorted(
                    name for name in os.listdir("/proc/self/fd") if int(name) < 4000),
            )
            wait_for(lambda: len(recorded("init")) % 2 == 0)

        def run(files):
            return pd.DataFrame({"name": [os.path.basename(file) for file in files]})
    """
    ended = workplace.job(script, process_count_per_node=2).run(AZ_BATCHAI_GPU_COUNT_FOUND="2")
    assert "imported numpy, pandas once for all processes" in ended.log(MAIN)
    one, other = workplace.recorded("init")
    assert {one["gpu"], other["gpu"]} == {"0", "1"}
    for fact in (one, other):
        assert fact["session"] == fact["pid"]
        assert fact["shown"] == [f"GRISTMILL_PROCESS={fact['marker']}"]
    assert one["parent"] == other["parent"], "the engine"
    for key in ("pid", "folder", "marker"):
        assert one[key] != other[key], key
    for number in range(2):
        assert one["random"][number] != other["random"][number]
    without = workplace.job(script + "    # environ\n", name="without", process_count_per_node=2).run()
    assert "imported" not in without.log(MAIN)
    assert sorted(without.lines) == sorted(ended.lines)
    started = workplace.recorded("init")[-1]
    assert one["descriptors"] == other["descriptors"] == started["descriptors"]


def test_children_of_forked_processes_end_with_them(workplace):
    """Also those that share the environment of their parent, because they run no other program."""
    workplace.data(2)
    script = """
        import os, time
        import pandas
        from recorder import record, recorded, wait_for
        def run(files):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    record("daemon")
                    time.sleep(1000)
                os._exit(0)
            wait_for(lambda: len(recorded("daemon")) == 2)
            if files[0].endswith("001.txt"):
                os.kill(os.getpid(), 9)
            wait_for(lambda: recorded("go"))
            return files
    """
    running = workplace.job(script, process_count_per_node=2, run_max_try=1).start()
    wait_until(lambda: len(workplace.recorded("daemon")) == 2, "both run")
    pids = [fact["pid"] for fact in workplace.recorded("daemon")]
    wait_until(lambda: sum(map(is_alive, pids)) == 1, "that of the killed process ends")
    go(workplace)
    ended = running.wait()
    assert ended.mini_batches == (2, 1, 1)
    assert not any(map(is_alive, pids))
    assert ONCE in ended.log(MAIN)


def test_processes_that_die_are_replaced_by_forked_ones_and_their_ends_told(workplace):
    workplace.data(6)
    script = """
        import os
        import pandas
        from recorder import record
        def run(files):
            if files[0].endswith("001.txt"):
                os._exit(3)
            if files[0].endswith("002.txt"):
                os.kill(os.getpid(), 11)
            return files
    """
    ended = workplace.job(script, process_count_per_node=2, run_max_try=2).run()
    assert ended.mini_batches == (6, 4, 2)
    log = ended.log(MAIN)
    assert log.count(ONCE) == 1
    assert "exits with returncode 3" in log
    assert "exits with returncode -11" in log


USELESS = {
    "prints": ("print('old version')", "import prints: old version"),
    "prints at its end": ("import os; os.write(2, b'no GPU')", "import prints: no GPU"),
    "fails": ("raise ValueError('no such file')", "ValueError: no such file"),
    "ends the process": ("import os; os._exit(9)", "the template ended with 9"),
    "starts a thread": (
        "import threading, time; threading.Thread(target=time.sleep, args=[1000], daemon=True).start()",
        "they start threads",
    ),
    "takes too long": ("import time; time.sleep(1000)", f"{ITSELF}: the imports of the template take too long"),
}


@pytest.mark.parametrize("way", USELESS)
def test_processes_start_without_a_template_that_is_no_use(workplace, way):
    text, cause = USELESS[way]
    workplace.data(2)
    # The library behaves so only in the template.
    library = f"import os, sys\nif 'template' in os.environ['GRISTMILL_PROCESS']:\n    {text}\n"
    script = "import pandas\ndef run(files): return files"
    ended = workplace.job(script, process_count_per_node=2).run(**with_library(workplace, library))
    assert ended.mini_batches == (2, 2, 0)
    log = ended.log(MAIN)
    assert ITSELF in log and cause in log, log
    assert ONCE not in log


def test_log_names_only_the_libraries_that_are_there(workplace):
    workplace.data(2)
    script = """
        import pandas
        try:
            import pyarrow
        except ImportError:
            pass
        def run(files):
            return files
    """
    hides = """
        import importlib.util
        found = importlib.util.find_spec
        importlib.util.find_spec = lambda name, package=None: None if name == 'pyarrow' else found(name, package)
    """
    variables = with_library(workplace, hides, "sitecustomize")
    ended = workplace.job(script, process_count_per_node=2).run(**variables)
    assert ONCE in ended.log(MAIN)


def test_modules_of_the_script_are_not_imported_in_the_template(workplace):
    workplace.data(2)
    workplace.write({"code/pandas.py": "import recorder; recorder.record('imported')"})
    ended = workplace.job("import pandas\ndef run(files): return files", process_count_per_node=2).run()
    assert f"{ITSELF}: Unusable: they import pandas" in ended.log(MAIN)


def test_job_goes_on_without_its_template(workplace):
    workplace.data(6)
    script = """
        import os
        import pandas
        from recorder import record, recorded, wait_for
        def init():
            record("init")
        def run(files):
            wait_for(lambda: recorded("go"))
            if files[0].endswith("001.txt"):
                os._exit(1)
            wait_for(lambda: len(recorded("init")) == 3)
            return files
    """
    running = workplace.job(script, process_count_per_node=2, run_max_try=1).start()
    wait_until(lambda: len(workplace.recorded("init")) == 2, "both processes are ready")
    own = {fact["pid"] for fact in workplace.recorded("init")}
    children: set[int] = set()
    for listed in Path(f"/proc/{running.process.pid}/task").glob("*/children"):
        children |= set(map(int, listed.read_text().split()))
    (template,) = children - own
    os.kill(template, signal.SIGKILL)
    go(workplace)
    ended = running.wait()
    assert ended.mini_batches == (6, 5, 1)
    assert f"{ITSELF}: the template ended with -9" in ended.log(MAIN)


SLOW = """
import os, time
if 'template' in os.environ['GRISTMILL_PROCESS']:
    open(os.environ['GRISTMILL_HOME'] + '/imports', 'w').close()
    time.sleep(1000)
"""


def test_interrupt_does_not_wait_for_the_template(workplace):
    workplace.data(2)
    script = "import pandas\ndef run(files): return files"
    running = workplace.job(script, process_count_per_node=2).start(**with_library(workplace, SLOW))
    wait_until(lambda: (workplace.home / "imports").exists(), "the template imports")
    running.send(signal.SIGINT)
    ended = running.wait()
    assert ended.exit_status == CANCELED
    assert "take too long" not in ended.log(MAIN)
