"""The contract with an entry script: its functions, their arguments, their allowed results, their environment."""

import os

import pytest
from agent import lines

ILLEGAL = "The run() method in the entry script should return a list or a pandas DataFrame"


def test_script_needs_only_run(start):
    agent = start("def run(anything): return anything")
    event = agent.run(["/data/a.png", "/data/b c.png"])
    assert event["status"] == "succeeded" and event["sequence"] == 1 and event["returned"] == 2
    assert event["rows"] == b"/data/a.png\n/data/b c.png\n"
    assert event["run_seconds"] >= 0 and event["process_seconds"] >= 0 and event["load_seconds"] > 0
    assert "columns" not in event and "warnings" not in event
    assert agent.finish() == []


def test_answers_come_in_order_of_a_long_frame(start):
    agent = start("def run(mini_batch): return mini_batch")
    agent.hand_over(*(agent.files([f"f{number}"]) for number in range(3000)))
    agent.hand_over(*(agent.files([f"g{number}"]) for number in range(3)))
    for number in range(3000):
        event = agent.receive()
        assert (event["sequence"], event["rows"]) == (number + 1, f"f{number}\n".encode())
    assert [agent.receive()["rows"] for _ in range(3)] == [b"g0\n", b"g1\n", b"g2\n"]


@pytest.mark.parametrize(
    "signature, gets_context",
    [
        ("mini_batch", False),
        ("data, context", True),
        ("data, ctx=None", True),
        ("data, threshold=0.5", False),
        ("data, mini_batch_context=0", True),
        ("*arguments", True),
        ("data, *rest", True),
        ("data, **options", False),
        ("data, *, flag=1", False),
    ],
)
def test_run_signature_decides_about_the_context(start, signature, gets_context):
    agent = start(f"def run({signature}): return ['MiniBatchContext' in repr(locals())]")
    assert agent.run()["rows"] == f"{gets_context}\n".encode()


def test_decorator_that_hides_the_signature_is_seen_through_and_main_guards_do_not_run(start):
    agent = start(
        """
        if __name__ == "__main__": raise SystemExit(9)
        def timed(function):
            def wrapper(*args, **kwargs): return function(*args, **kwargs)
            return wrapper
        @timed
        def run(mini_batch): return mini_batch
        """
    )
    assert agent.run(["a"])["rows"] == b"a\n"


def test_context_describes_the_mini_batch(start):
    agent = start(
        """
        def run(mini_batch, context):
            return [context.partition_key_value, context.minibatch_index, context.mini_batch_id, context.attempt,
                    context.node_id, context.process_name, context.dataset is mini_batch, f"{context}"]
        """
    )
    *values, text = lines(agent.run(["a"], mini_batch=7, try_number=2, key=[["user", "u"], ["genre", "g"]]))
    assert values == ["{'user': 'u', 'genre': 'g'}", "7", "7", "2", "0", "process000", "True"]
    assert "minibatch_index=7" in text
    assert agent.run(["a"])["rows"].startswith(b"{}\n")


def test_rank_mini_batch_is_an_empty_list_of_one_item(start):
    agent = start("def run(mini_batch): return [mini_batch]")
    agent.hand_over(agent.mini_batch({"kind": "rank"}))
    event = agent.receive()
    assert (event["returned"], event["rows"]) == (1, b"[]\n")
    assert "warnings" not in event


VALID = [
    ("['cat.png: 3']", "cat.png: 3\n"),
    ("[5, 0.1, True, None]", "5\n0.1\nTrue\nNone\n"),
    ("[[1, 2], (1, 'a'), {'k': 1}]", "[1, 2]\n(1, 'a')\n{'k': 1}\n"),
    ("[numpy.float32(0.1)]", "0.10000000149011612\n"),
    ("[numpy.array([1, 2, 3])]", "[1 2 3]\n"),
    ("[b'x']", "b'x'\n"),
    ("['two\\nlines', '']", "two\nlines\n\n"),
    ("('a', 1)", "a\n1\n"),
    ("[]", ""),
    ("()", ""),
    ("['\\u00e9 \\U0001f600']", "é 😀\n"),
    ("pandas.DataFrame({'a': ['two words', 'q\"q', None], 'b': [1, 2, 3]})", '"two words" 1\n"q""q" 2\n 3\n'),
    ("pandas.DataFrame({'a': []})", ""),
]
SEQUENCES = [
    ("numpy.array([1.5, 2])", "1.5\n2.0\n", "ndarray"),
    ("numpy.array([[1, 2], [3, 4]])", "[1 2]\n[3 4]\n", "ndarray"),
    ("pandas.Series([1, 2])", "1\n2\n", "Series"),
    ("(path for path in mini_batch[1:])", "a\nb\n", "generator"),
    ("map(str.upper, mini_batch[1:])", "A\nB\n", "map"),
]
EVALUATES = "import numpy, pandas\ndef run(mini_batch): return eval(mini_batch[0])"


def test_results_become_text_and_other_sequences_warn(start):
    agent = start(EVALUATES)
    for expression, rows in VALID:
        event = agent.run([expression, "b", "c", "d"])
        assert (event["rows"].decode(), event.get("warnings")) == (rows, None), expression
    for expression, rows, kind in SEQUENCES:
        event = agent.run([expression, "a", "b"], mini_batch=0)
        assert (event["returned"], event["rows"].decode()) == (2, rows), expression
        assert [warning["message"] for warning in event["warnings"]] == [
            f"run() returned a {kind} for mini-batch 0; it was made into a list"
        ]


def test_exception_in_a_generator_fails_the_attempt(start):
    agent = start("def run(mini_batch):\n    yield 1\n    raise ValueError('halfway')")
    event = agent.run()
    assert (event["status"], event["error"]["message"]) == ("run_raised", "halfway")
    assert "line 3" in event["error"]["traceback"]


def test_invalid_results_name_type_and_mini_batch_and_quote_the_text(start):
    agent = start(EVALUATES)
    kinds = {
        "None": "NoneType",
        "'text'": "str",
        "b''": "bytes",
        "{'a': 1}": "dict",
        "5": "int",
        "{1}": "set",
        "numpy.array(1)": "ndarray",
    }
    for expression, kind in kinds.items():
        event = agent.run([expression], mini_batch=41)
        assert event["status"] == "illegal_result", expression
        message = event["error"]["message"]
        assert message.startswith(ILLEGAL) and message.endswith(kind) and "mini-batch 41" in message
    for text, shown in (("no rows\nhere", "'no rows\\nhere'"), ("x" * 1000, f"'{'x' * 200}'…")):
        message = agent.run([repr(text)])["error"]["message"]
        assert message.endswith(f"it returned the text {shown}: str"), message


REPEATS = "def run(mini_batch):\n    count = int(mini_batch[0])\n    mini_batch.clear()\n    return ['x'] * count"


def test_results_of_any_length_are_kept(start):
    agent = start(REPEATS)
    for count in (1, 5):
        event = agent.run([str(count), "b", "c"])
        assert (event["returned"], event["rows"]) == (count, b"x\n" * count) and "warnings" not in event


def test_strict_results_fail_a_short_one_although_the_script_empties_its_list(start):
    agent = start(REPEATS, strict_results=True)
    event = agent.run(["1", "b"])
    assert event["status"] == "illegal_result"
    assert "1 results for the 2 items" in event["error"]["message"]
    for count in (2, 3):
        event = agent.run([str(count), "b"])
        assert (event["status"], event["returned"]) == ("succeeded", count)


def test_summary_only_counts_without_rows(start):
    event = start("def run(mini_batch): return [None] * 3", rows_wanted=False).run(["a", "b", "c"])
    assert (event["returned"], event["rows"]) == (3, b"")


RAISING = [
    ("raise ValueError('bad pixel')", "ValueError", "bad pixel"),
    ("raise ValueError", "ValueError", "ValueError without a message"),
    ("raise ValueError('two\\n  lines')", "ValueError", "two lines"),
    ("import sys; sys.exit(3)", "SystemExit", "the script called sys.exit(3)"),
    ("raise KeyboardInterrupt", "KeyboardInterrupt", "KeyboardInterrupt without a message"),
    ("raise GeneratorExit", "GeneratorExit", "GeneratorExit without a message"),
    ("return [Unprintable()]", "RuntimeError", "no text"),
    ("return ['\\ud800']", "UnicodeEncodeError", "surrogates not allowed"),
    ("raise ValueError('lone \\udc80')", "ValueError", "lone \\udc80"),
    ("exec('a b')", "SyntaxError", "<string>, line 1: invalid syntax"),
    ("raise Mute", "Mute", "Mute without a message"),
    ("return run(mini_batch)", "RecursionError", "maximum recursion depth exceeded"),
]


def test_every_exception_fails_only_the_attempt(start):
    agent = start(
        """
class Unprintable:
    def __format__(self, _): raise RuntimeError("no text")
class Mute(Exception):
    def __str__(self): raise RuntimeError
def run(mini_batch):
    (name,) = mini_batch
"""
        + "".join(f"    if name == '{number}': {statement}\n" for number, (statement, *_) in enumerate(RAISING))
        + "    return mini_batch\n"
    )
    for number, (statement, category, message) in enumerate(RAISING):
        event = agent.run([str(number)])
        assert (event["status"], event["error"]["category"]) == ("run_raised", category), statement
        assert message in event["error"]["message"] and "\n" not in event["error"]["message"], statement
        assert agent.run(["good"])["rows"] == b"good\n", statement


def test_traceback_shows_user_code_and_is_in_the_error_file(start):
    agent = start(
        """
        def deep(path): raise ValueError(f"cannot read {path}")
        def run(mini_batch): return [deep(path) for path in mini_batch]
        """
    )
    error = agent.run(["x.png"], mini_batch=12, try_number=2)["error"]
    assert error["message"] == "cannot read x.png"
    assert "in deep" in error["traceback"] and "gristmill/" not in error["traceback"]
    assert error["log"] == "user/error/0/process000.txt"
    text = agent.log(error["log"])
    assert "run() of mini-batch 12, try 2: ValueError: cannot read x.png" in text and "in deep" in text


def test_long_traceback_keeps_its_tail(start):
    agent = start("def run(mini_batch): raise ValueError('é' * 100_000 + 'the end')")
    error = agent.run()["error"]
    assert len(error["traceback"].encode()) <= 16 * 1024 and error["traceback"].rstrip().endswith("the end")
    assert len(error["message"]) <= 2000


@pytest.mark.parametrize("name", ["digit-identification.py", "code/score.py", "json.py", "2nd.py", "test.py"])
def test_unimportable_and_reserved_script_names(start, name):
    agent = start("import json, os\ndef run(mini_batch): return [os.path.basename(__file__)]", name=name)
    assert agent.run()["rows"].decode().strip() == os.path.basename(name)


@pytest.mark.parametrize(
    "script, category, message",
    [
        ("def run(mini_batch)\n    return 1", "SyntaxError", "score.py, line 1: expected ':'"),
        ("import no_such\ndef run(m): return m", "ModuleNotFoundError", "No module named 'no_such' (interpreter: "),
        ("def go(m): return m", "MissingRun", "score.py has no function run(mini_batch)"),
        ("run = 5", "MissingRun", "score.py has no function run(mini_batch)"),
        ("raise SystemExit(4)", "SystemExit", "the script called sys.exit(4)"),
        ("import argparse; argparse.ArgumentParser().parse_args()", "SystemExit", "use parse_known_args()"),
        (
            "from argparse import *; p = ArgumentParser(); p.add_argument('--x', required=True); p.parse_args([])",
            "SystemExit",
            "the script called sys.exit(2): the following arguments are required: --x",
        ),
        ("async def run(m): yield m", "AsyncFunction", "run() of score.py is an async generator: return a list"),
        ("async def run_item(item): yield item", "AsyncFunction", "run_item() of score.py is an async generator"),
        ("def run_item(item): return item", "AsyncFunction", "run_item() of score.py is a plain function"),
        ("async def init(): raise OSError('no service')\ndef run(m): return m", "OSError", "no service"),
        ("def init(): raise OSError('no model')\ndef run(m): return m", "OSError", "no model"),
        ("import sys\ndef init(): sys.exit()\ndef run(m): return m", "SystemExit", "the script called sys.exit()"),
        ("def init(): raise KeyboardInterrupt\ndef run(m): return m", "KeyboardInterrupt", "KeyboardInterrupt"),
        (
            "import os\ndef init(): os.environ['AZUREML_MODEL_DIR']\ndef run(m): return m",
            "KeyError",
            "'AZUREML_MODEL_DIR' (the key `model` of the job file sets it)",
        ),
        ("def init(needed): pass\ndef run(m): return m", "TypeError", "missing 1 required positional argument"),
    ],
)  # fmt: skip
def test_scripts_that_cannot_start(start, script, category, message):
    agent = start(script, ready=False, argv=["--unknown", "1"])
    event = agent.receive()
    assert event["frame"] == "init_failed"
    assert event["error"]["category"] == category and message in event["error"]["message"]
    assert "importlib" not in event["error"]["traceback"] and "gristmill/" not in event["error"]["traceback"]
    assert agent.receive() is None
    assert agent.wait() == 72
    assert category in agent.log(event["error"]["log"])


def test_failed_init_exits_despite_threads(start):
    agent = start(
        """
        import threading
        def init():
            threading.Thread(target=threading.Event().wait).start()
            raise ValueError("no")
        def run(mini_batch): return mini_batch
        """,
        ready=False,
    )
    assert agent.receive()["frame"] == "init_failed"
    assert agent.wait() == 72


def test_failing_shutdown_is_reported_and_exits_normally(start):
    agent = start(
        """
        import atexit
        atexit.register(print, "at exit")
        def run(mini_batch): return mini_batch
        def shutdown(): raise RuntimeError("cannot close")
        """
    )
    agent.run()
    events = agent.finish()
    assert [event["frame"] for event in events] == ["shutdown_failed"]
    assert events[0]["error"]["message"] == "cannot close" and "shutdown()" in agent.log("user/error/0/process000.txt")
    assert agent.stdout() == "at exit\n"


def test_paths_of_any_bytes_are_returned_unchanged(start):
    agent = start("import os\ndef run(mini_batch): return [os.fsencode(mini_batch[0])] + mini_batch")
    raw = {"bytes": "L2RhdGEv//4="}
    assert agent.run([raw])["rows"] == b"b'/data/\\xff\\xfe'\n" + b"/data/\xff\xfe\n"


def test_package_folder_shadows_nothing(start):
    agent = start(
        """
        import sys, runner, logs
        def run(mini_batch):
            return [runner.MINE, logs.MINE, any(path.endswith("gristmill") for path in sys.path)]
        """,
        files={"runner.py": "MINE = 1", "logs.py": "MINE = 2"},
    )
    assert agent.run()["rows"] == b"1\n2\nFalse\n"


def test_profiler_counts_every_run(start):
    for module in ("cProfile", "profile"):
        agent = start("def work(): pass\ndef run(mini_batch): work(); return mini_batch", profiling_module=module)
        agent.run()
        agent.run()
        agent.finish()
        import pstats

        stats = pstats.Stats(str(agent.logs / "sys/node/0/process000.profile")).stats
        assert [calls[0] for (_, _, name), calls in stats.items() if name == "work"] == [2]
