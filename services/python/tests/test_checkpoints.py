"""Scripts that hand back results of items while `run` still works: the next attempt gets only the other items."""

import os

import pyarrow
import pytest
from agent import rows_of_tables

from gristmill.failed_items import without_result

HALFWAY = """
    import os
    def run(mini_batch):
        print(len(mini_batch))
        for path in mini_batch:
            if path == "c" and not os.path.exists("failed"):
                open("failed", "w").close()
                raise ValueError("halfway")
            yield path, path.upper()
"""


def kept(agent):
    return sorted(path.parent.name for path in (agent.folder / "checkpoints").glob("*/*"))


def options(agent):
    """Returns the options of a process that finds the results that another one has kept."""
    return {"checkpoints": str(agent.folder / "checkpoints")}


def failure(event, status="illegal_result"):
    assert event["status"] == status, event
    return event["error"]["message"]


def statuses(event):
    return [(failed["item"], failed["items"], failed["status"]) for failed in event["failed_items"]]


def test_generator_keeps_yielded_results(start):
    agent = start(HALFWAY)
    assert failure(agent.run("abcde", mini_batch=3), "run_raised") == "halfway"
    assert kept(agent) == ["3"]
    event = agent.run("abcde", mini_batch=3, try_number=2)
    assert (event["rows"], event["returned"], event["has_checkpoints"]) == (b"A\nB\nC\nD\nE\n", 5, True)
    assert event["items_kept"] == 2
    assert "warnings" not in event
    assert agent.finish() == []
    assert agent.stdout().split() == ["5", "3"]


def test_kept_results_survive_their_process(start):
    agent = start("import os\ndef run(mini_batch):\n    yield 1, 'b'\n    yield 0, 'a'\n    os._exit(9)")
    agent.hand_over(agent.files("abc"))
    assert agent.receive() is None and agent.wait() == 9
    # Without a hint: the folder exists.
    agent = start("def run(mini_batch):\n    return ((path, path) for path in mini_batch)", **options(agent))
    event = agent.run("ABC", mini_batch=0)
    assert (event["rows"], event["returned"]) == (b"a\nb\nC\n", 3)
    assert event["items_kept"] == 2
    event = agent.run("xy", mini_batch=1)
    assert event["rows"] == b"x\ny\n" and "items_kept" not in event


@pytest.mark.parametrize(
    "script", [HALFWAY, "import os\ndef run(batch):\n    yield 0, 'A'\n    yield 1, 'B'\n    os._exit(9)"]
)
def test_only_kept_results_count_without_a_call_of_run(start, script):
    agent = start(script, strict_results=True)
    if script is HALFWAY:
        assert agent.run("abcde", mini_batch=3)["has_checkpoints"]
    else:
        agent.hand_over(agent.files("abcde", mini_batch=3))
        assert agent.wait() == 9
        agent = start(script, strict_results=True, **options(agent))
    event = agent.run("abcde", mini_batch=3, items=(0, 5), only_kept=True)
    assert (event["rows"], event["returned"], event["items_kept"]) == (b"A\nB\n", 2, 2)
    assert statuses(event) == [(2, 1, "run_raised"), (3, 1, "run_raised"), (4, 1, "run_raised")]
    assert event["pieces"] == [[0, 4]]
    nothing = agent.run("xy", mini_batch=4, items=(0, 2), only_kept=True)
    assert nothing["error"]["category"] == "NothingKept" and "has_checkpoints" not in nothing


def test_many_items_without_a_result_share_entries():
    missing = [*range(5), *range(10, 20_000)]
    assert [(entry["item"], entry["items"]) for entry in without_result(missing)] == [(0, 5), (10, 19_990)]
    assert len(without_result(missing[:10_000])) == 10_000


def test_rows_of_tables_are_named_by_their_index(start):
    agent = start(
        """
        def run(mini_batch):
            rows = mini_batch[mini_batch.n != 5].sort_values("n", ascending=False)
            for index, row in rows.iterrows():
                if row.n == 3 and len(mini_batch) == 6:
                    raise ValueError("halfway")
                yield index, {"n": row.n, "rows": len(mini_batch)}
        """,
        tabular=True,
        output_format="jsonl",
    )
    batch = pyarrow.record_batch({"n": [1, 2, 3, 4, 5, 6]})
    assert failure(agent.run_table(batch, mini_batch=0), "run_raised") == "halfway"
    event = agent.run_table(batch, mini_batch=0, try_number=2)
    expected = [(1, 4), (2, 4), (3, 4), (4, 6), (6, 6)]
    assert rows_of_tables(event) == [{"n": n, "rows": rows} for n, rows in expected]
    assert event["returned"] == 5, "no result of one item"


def test_done_of_the_context_is_the_same(start):
    agent = start(
        """
        import asyncio, pathlib, threading
        async def run(mini_batch, context):
            context.done(mini_batch[1], "second")
            thread = threading.Thread(target=context.done, args=(pathlib.Path("c"),))
            thread.start()
            thread.join()
            if context.attempt == 1:
                raise ValueError("halfway")
            await asyncio.sleep(0)
            context.done(0, "first")
        """
    )
    failure(agent.run("abcd", mini_batch=0), "run_raised")
    agent.close()
    agent = start(
        "def run(mini_batch, context):\n    context.done('a', mini_batch)\n    context.done(1, 'd')", **options(agent)
    )
    event = agent.run("abcd", mini_batch=0, try_number=2)
    assert (event["rows"], event["returned"]) == (b"['a', 'd']\nsecond\nd\n", 4), "an item may have no row"


WRONG = [
    ("'x', 1", "handed back a result of 'x', which is not an item of mini-batch 0: an item is one of the paths in"),
    ("3, 1", "handed back a result of 3, which is not an item of mini-batch 1"),
    ("-1, 1", "handed back a result of -1"),
    ("True, 1", "handed back a result of True"),
    ("None, 1", "handed back a result of None"),
    ("'text'", "yielded a str after results of items: yield (item, row) each time"),
    ("1, 2, 3", "yielded a tuple after results"),
]


def test_wrong_items_fail_the_attempt_and_nothing_is_lost(start):
    script = f"""
        def run(mini_batch, context):
            yield 'a', 'A'
            yield [{", ".join(f"({yields})" for yields, _ in WRONG)}][context.minibatch_index]
            yield 'b', 'B'
    """
    agent = start(script)
    for number, (yields, message) in enumerate(WRONG):
        assert message in failure(agent.run("abc", mini_batch=number)), yields
    agent.close()
    agent = start("def run(mini_batch):\n    for path in mini_batch: yield path, path", **options(agent))
    for number in range(len(WRONG)):
        assert agent.run("abc", mini_batch=number, try_number=2)["rows"] == b"A\nb\nc\n"


TWICE = """
    def run(mini_batch):
        for path in mini_batch:
            yield path, path.upper()
            if path == "b":
                yield BACK, "again"
"""


def warnings_of(event):
    return [warning["message"] for warning in event.get("warnings", [])]


@pytest.mark.parametrize("back, item", [("path", "'b'"), ("1", "1")])
def test_first_row_of_an_item_that_is_handed_back_twice_counts(start, back, item):
    agent = start(TWICE.replace("BACK", back))
    warning = f"run() handed back item {item} of mini-batch 3 twice: its first row counts"
    for _ in range(2):
        event = agent.run("abcd", mini_batch=3)
        assert (event["rows"], warnings_of(event)) == (b"A\nB\nC\nD\n", [warning])
    agent.close()
    agent = start(TWICE.replace("BACK", back), **options(agent))
    for items, expected in (([0, 1], []), ([1, 2], [warning]), ([1, 3], [warning])):
        event = agent.run("abcd", mini_batch=3, items=items, try_number=3)
        assert warnings_of(event) == expected, "another process finds it"


def test_item_that_is_handed_back_in_another_form_is_the_same_item(start):
    """The outcome is the same in a mini-batch of one item, which has no other try."""
    agent = start(
        """
        def run(mini_batch, context):
            for path in mini_batch:
                context.done(path, path.upper())
                yield path, path
        """
    )
    event = agent.run("abc", mini_batch=0)
    assert (event["rows"], event["returned"]) == (b"A\nB\nC\n", 3)
    (warning,) = warnings_of(event)
    assert (
        warning == "run() handed back 3 items of mini-batch 0 more than once, first 'a': the first row of each counts"
    )
    event = agent.run("a", mini_batch=1)
    assert event["rows"] == b"A\n"
    assert warnings_of(event) == ["run() handed back item 'a' of mini-batch 1 twice: its first row counts"]


@pytest.mark.parametrize(
    "script, warning",
    [
        (
            "def run(mini_batch):\n    for path in mini_batch:\n        yield path, path\n"
            "        if path == 'b': yield 'x', 1",
            "run() handed back a result of 'x', which is not an item of mini-batch 0: nothing else is lost",
        ),
        (
            "def run(mini_batch, context):\n    for path in mini_batch: context.done(path, path)\n    return [1]",
            "run() of mini-batch 0 returned a list, and has handed back results of items: hand back all of them, and "
            "return nothing. What it has handed back counts",
        ),
        (
            "def run(mini_batch):\n    for path in mini_batch: yield path, path\n    raise ValueError('too late')",
            "run() of mini-batch 0 failed after it had handed back all its items, whose results count: ValueError: "
            "too late",
        ),
    ],
)
def test_failure_that_no_item_repeats_is_a_warning_of_the_next_try(start, script, warning):
    agent = start(script)
    assert agent.run("abc", mini_batch=0)["status"] != "succeeded"
    event = agent.run("abc", mini_batch=0, try_number=2)
    assert (event["rows"], warnings_of(event)) == (b"a\nb\nc\n", [warning])
    agent.close()
    agent = start(script, **options(agent))
    ranges = [agent.run("abc", mini_batch=0, items=[item, item + 1], try_number=3) for item in range(3)]
    told = [text for event in ranges for text in warnings_of(event)]
    assert told == [warning], "one of its ranges tells it"


def test_every_try_names_items_once_one_has(start):
    """A try, or one of a range of the items, does not take pairs for rows because it begins with another value."""
    agent = start(
        """
        def run(mini_batch):
            for path in mini_batch:
                yield "plain" if path == "c" else (path, path.upper())
        """
    )
    told = "run() yielded a str after results of items: yield (item, row) each time"
    assert failure(agent.run("abcde", mini_batch=0)) == told
    assert failure(agent.run("abcde", mini_batch=0, try_number=2)) == told
    assert failure(agent.run("abcde", mini_batch=0, items=[2, 4], try_number=3)) == told
    assert failure(agent.run("abcde", mini_batch=0, items=[2, 3], try_number=4)) == told
    assert agent.run("abcde", mini_batch=0, items=[3, 5], try_number=5)["rows"] == b"D\nE\n"
    assert agent.run("cd", mini_batch=1)["rows"] == b"plain\n('d', 'D')\n", "another mini-batch decides for itself"
    agent.close()
    agent = start("def run(mini_batch):\n    for path in mini_batch: yield path", **options(agent))
    assert failure(agent.run("abcde", mini_batch=0, items=[2, 3])) == told, "another process finds it"


def test_error_that_the_script_catches_fails_the_attempt(start):
    script = "import contextlib\ndef run(m, context):\n    with contextlib.suppress(Exception): context.done('x', 1)"
    assert "not an item of mini-batch 0" in failure(start(script).run("a"))


def test_first_item_that_is_foreign_says_how_to_return_pairs(start):
    agent = start("def run(mini_batch):\n    for path in mini_batch: yield path + '.txt', 1")
    assert failure(agent.run("a")).endswith("For rows that are pairs, return a list")


def test_done_after_the_end_or_in_a_child_is_refused(start):
    agent = start(
        """
        import os
        contexts = []
        def run(mini_batch, context):
            contexts.append(context)
            if len(contexts) == 2:
                contexts[0].done("a", 1)
            pid = os.fork()
            if pid == 0:
                try:
                    context.done("a", 1)
                except RuntimeError as error:
                    os._exit(7)
                os._exit(0)
            return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]
        """
    )
    assert agent.run("a")["rows"] == b"7\n"
    assert "after run() had ended" in failure(agent.run("a"), "run_raised")


def test_strict_results_ask_for_every_item(start):
    agent = start("def run(mini_batch):\n    yield mini_batch[0], mini_batch[0]", strict_results=True)
    assert "1 results for the 2 items" in failure(agent.run("ab", mini_batch=0))
    assert agent.run("ab", mini_batch=0, try_number=2)["rows"] == b"a\nb\n"


def test_damaged_end_of_a_file_costs_only_the_items_in_it(start):
    agent = start(HALFWAY)
    failure(agent.run("abcde", mini_batch=0), "run_raised")
    (path,) = (agent.folder / "checkpoints" / "0").iterdir()
    content = path.read_bytes()
    for damaged in (content[:-1], content[:-1] + b"\0", content[:-20] + bytes(20)):
        path.write_bytes(damaged)
        event = agent.run("abcde", mini_batch=0, try_number=2)
        assert event["rows"] == b"A\nB\nC\nD\nE\n"
        for other in path.parent.iterdir():
            if other != path:
                other.unlink()
    path.write_bytes(b"no checkpoint")
    assert agent.run("abcde", mini_batch=0, try_number=2)["rows"] == b"A\nB\nC\nD\nE\n"
    agent.finish()
    assert agent.stdout().split() == ["5", "4", "4", "4", "5"]


def test_ranges_of_a_mini_batch_share_kept_results(start):
    agent = start(HALFWAY)
    failure(agent.run("abcde", mini_batch=0), "run_raised")
    assert agent.run("abcde", mini_batch=0, items=(0, 2))["rows"] == b"A\nB\n"
    (path,) = (agent.folder / "checkpoints" / "0").iterdir()
    # The process does not read the file again, so hundreds of ranges cost no more than one.
    path.write_bytes(bytes(path.stat().st_size))
    assert agent.run("abcde", mini_batch=0, items=(1, 4))["rows"] == b"B\nC\nD\n"
    # Another mini-batch, or another try, does not see these results.
    assert agent.run("abcde", mini_batch=1, items=(0, 2))["rows"] == b"A\nB\n"
    assert agent.run("abcde", mini_batch=0, try_number=2)["rows"] == b"A\nB\nC\nD\nE\n"
    agent.finish()
    assert agent.stdout().split() == ["5", "2", "2", "3"]


def test_results_that_cannot_be_kept_are_reported_once(start, tmp_path):
    event = start("def run(mini_batch):\n    for path in mini_batch: yield path, lambda: 0").run("ab")
    assert event["returned"] == 2
    (warning,) = warnings_of(event)
    assert "cannot be kept for another try: a row of the type function cannot be pickled" in warning
    (tmp_path / "file").touch()
    script = "def run(mini_batch):\n    for path in mini_batch: yield path, path"
    event = start(script, checkpoints=str(tmp_path / "file" / "checkpoints")).run("ab")
    assert event["rows"] == b"a\nb\n" and "has_checkpoints" not in event
    (warning,) = warnings_of(event)
    assert "cannot be kept for another try: [Errno 20]" in warning


def test_checks_name_the_item_of_a_row(start):
    schema = {"columns": [{"name": "n", "type": "integer"}]}
    script = """
        def run(mini_batch):
            for path in reversed(mini_batch):
                yield path, None if path == "b" else {"n": "x" if path == "d" else 1}
    """
    event = start(script, output_format="jsonl", row_schema=schema).run("abcd")
    assert (event["returned"], rows_of_tables(event)) == (3, [{"n": 1}, {"n": 1}])
    assert [failed["item"] for failed in event["failed_items"]] == [3]


def test_generator_of_other_values_yields_rows(start):
    agent = start("def run(mini_batch):\n    for path in mini_batch: yield [path, 1]")
    event = agent.run("ab")
    assert event["rows"] == b"['a', 1]\n['b', 1]\n"
    assert "returned a generator" in event["warnings"][0]["message"]
    assert not kept(agent)


def test_run_item_keeps_its_results_when_another_item_fails(start):
    agent = start(
        """
        import asyncio, os
        async def run_item(item):
            print(item)
            if item == "c" and not os.path.exists("failed"):
                open("failed", "w").close()
                raise ValueError("halfway")
            return None if item == "b" else item.upper()
        """,
        concurrency=1,
    )
    failure(agent.run("abcd", mini_batch=0), "run_raised")
    event = agent.run("abcd", mini_batch=0, try_number=2)
    assert (event["rows"], event["returned"]) == (b"A\nC\nD\n", 4)
    agent.finish()
    assert agent.stdout().split() == list("abcdc")


def test_run_item_keeps_its_results_from_time_to_time(start):
    agent = start(
        """
        import asyncio, os
        async def run_item(item):
            if item == "c":
                os._exit(9)
            await asyncio.sleep(0.06)
            return item
        """,
        concurrency=1,
    )
    agent.hand_over(agent.files("abcd"))
    assert agent.receive() is None
    agent = start("async def run_item(item): return item.upper()", **options(agent))
    assert agent.run("abcd", mini_batch=0, try_number=2)["rows"] == b"a\nb\nC\nD\n"


def test_quick_run_items_write_nothing(start):
    agent = start("async def run_item(item): return item")
    assert "has_checkpoints" not in agent.run("abcd")
    assert not os.path.exists(agent.folder / "checkpoints")


def test_items_that_are_never_handed_back_are_named(start):
    agent = start(
        """
        def run(mini_batch):
            for path in mini_batch:
                if path not in "bd":
                    yield path, path.upper()
        """
    )
    event = agent.run("abcde")
    assert (event["rows"], event["returned"]) == (b"A\nC\nE\n", 3)
    assert statuses(event) == [(1, 1, "illegal_result"), (3, 1, "illegal_result")]
    assert {failed["error"]["category"] for failed in event["failed_items"]} == {"NoResult"}
    assert event["pieces"] == [[0, 2], [2, 2], [4, 2]]
    event = agent.run("abcde", items=[1, 4])
    assert [failed["item"] for failed in event["failed_items"]] == [0, 2], "from the start of the range"
