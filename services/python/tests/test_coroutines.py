"""Entry scripts with ``async def`` functions, ``run_item``, and services that limit their rate."""

import pyarrow
import pytest
from agent import rows

LIMITED = """
class TooMany(Exception):
    def __init__(self, **attributes):
        super().__init__("too many requests")
        vars(self).update(attributes)
class Response:
    def __init__(self, status, headers=()):
        self.status_code, self.headers = status, dict(headers)
"""


def test_all_functions_share_one_event_loop(start):
    agent = start(
        """
        import asyncio
        async def init():
            global loop, lock
            loop, lock = asyncio.get_running_loop(), asyncio.Lock()
        async def run(mini_batch):
            async with lock:
                assert asyncio.get_running_loop() is loop
                await asyncio.sleep(0)
            return [path.upper() for path in mini_batch]
        async def shutdown():
            assert asyncio.get_running_loop() is loop
            print("closed")
        """
    )
    assert rows(agent.run(["a", "b"])) == ["A", "B"]
    assert rows(agent.run(["c"])) == ["C"]
    assert agent.finish() == []
    assert agent.stdout() == "closed\n"


def test_items_run_at_the_same_time_up_to_the_concurrency_and_keep_their_order(start):
    agent = start(
        """
        import asyncio
        now = most = 0
        async def run_item(item, context):
            global now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.01 * (5 - int(item) % 5))
            now -= 1
            return f"{context.minibatch_index}:{item}:{most if item == '19' else ''}"
        """,
        concurrency=3,
    )
    event = agent.run([str(item) for item in range(20)], mini_batch=7)
    assert rows(event) == [f"7:{item}:{3 if item == 19 else ''}" for item in range(20)]
    assert event["returned"] == 20


def test_item_of_a_table_is_a_dictionary_and_none_adds_no_row(start):
    pytest.importorskip("pandas")
    agent = start("async def run_item(item): return f\"{item['b']}{item['a']}\" if item['a'] else None", tabular=True)
    table = pyarrow.record_batch({"a": [1, None, 3], "b": ["x", "y", "z"]})
    event = agent.run_table(table)
    assert rows(event) == ["x1", "z3"]
    assert event["returned"] == 3, "an item without a row has succeeded"


def test_first_error_names_its_item(start):
    agent = start(
        """
        async def run_item(item):
            if item in "ce":
                raise ValueError(f"no total in {item}")
            return item
        """
    )
    event = agent.run(["a", "b", "c", "d", "e"])
    assert (event["status"], event["error"]["message"]) == ("run_raised", "no total in c")
    first, *_ = [line for line in event["error"]["traceback"].splitlines() if "File" in line]
    assert "score.py" in first and "asyncio" not in event["error"]["traceback"]
    assert "in item 2 of the mini-batch: c" in event["error"]["traceback"]
    assert "1 more items of the mini-batch failed" in event["error"]["traceback"]
    assert not event["items_tried"], "another try may follow"
    assert agent.finish() == []


def test_exit_of_a_coroutine_leaves_nothing_behind(start):
    agent = start(
        """
        import asyncio, sys
        left = []
        async def wait():
            try:
                await asyncio.sleep(60)
            finally:
                left.append("ended")
        async def run(mini_batch):
            if mini_batch == ["exit"]:
                asyncio.ensure_future(wait())
                await asyncio.sleep(0)
                sys.exit(3)
            return left
        """
    )
    event = agent.run(["exit"])
    assert (event["status"], event["error"]["category"]) == ("run_raised", "SystemExit")
    assert rows(agent.run(["a"])) == ["ended"]


def test_plain_run_wins_over_a_function_called_run_item(start):
    agent = start("def run_item(x): return x * 2\ndef run(mini_batch): return [run_item(m) for m in mini_batch]")
    assert rows(agent.run(["a"])) == ["aa"]


@pytest.mark.parametrize("function", ["run", "run_item"])
def test_service_that_limits_its_rate_is_asked_again(start, function):
    # The item is what the service answers twice.
    agent = start(
        f"""{LIMITED}
answers = 0
async def {function}(given):
    global answers
    answers += 1
    if answers % 3:
        answer = eval({"given[0]" if function == "run" else "given"})
        if isinstance(answer, Exception):
            raise answer
        return answer
    return {'["good"]' if function == "run" else '"good"'}
"""
    )
    answers = [
        "TooMany(code=429, headers={'Retry-After': '0.05'})",
        "TooMany(status=429, headers={'retry-after-ms': '50'})",
        "TooMany(response=Response(429, {'RETRY-AFTER': '0.05'}))",
        "TooMany(response=Response(503, {'Retry-After': '0.05'}))",
        "TooMany(response={'ResponseMetadata': {'HTTPStatusCode': 429, 'HTTPHeaders': {'retry-after': '0.05'}}})",
        "Response(429, {'Retry-After': 'Wed, 21 Oct 2015 07:28:00 GMT'})",
    ]
    for sequence, answer in enumerate(answers, 1):
        events = [agent.run([answer])]
        while events[-1]["frame"] == "rate_limited":
            events.append(agent.receive())
        *waits, ended = events
        assert rows(ended) == ["good"], answer
        assert all(wait["sequence"] == sequence and 0 <= wait["seconds"] <= 0.06 for wait in waits), answer
        assert len(waits) == (0 if "2015" in answer else 2), answer
        assert "warnings" not in ended, "the agent sums the waits"


def test_all_items_wait_while_the_service_limits_its_rate(start):
    agent = start(
        f"""{LIMITED}
import asyncio, time
until = asked = 0
async def run_item(item):
    global until, asked
    asked += 1
    if asked == 2:
        until = time.monotonic() + 0.2
        raise TooMany(code=429, headers={{"Retry-After": "0.2"}})
    early = time.monotonic() < until
    await asyncio.sleep(0.001)
    return "early" if early else item
""",
        concurrency=2,
    )
    event = agent.run([str(item) for item in range(10)])
    assert event["frame"] == "rate_limited" and 0.1 < event["seconds"] <= 0.2
    assert rows(agent.receive()) == [str(item) for item in range(10)]


def test_other_errors_and_those_of_a_plain_run_are_errors(start):
    agent = start(f"{LIMITED}\nasync def run(mini_batch): raise eval(mini_batch[0])")
    for error in ("TooMany(code=500, headers={'Retry-After': '1'})", "TooMany(status_code=503)", "TooMany()"):
        event = agent.run([error])
        assert (event["status"], event["error"]["category"]) == ("run_raised", "TooMany"), error
    agent = start(f"{LIMITED}\ndef run(mini_batch): raise TooMany(code=429, headers={{'Retry-After': '1'}})")
    assert agent.run(["a"])["status"] == "run_raised"


def test_endless_limit_becomes_an_error(start):
    agent = start(
        f"""{LIMITED}
import gristmill.coroutines
gristmill.coroutines.RATE_LIMITED_SECONDS_MAX = 0.3
async def run(mini_batch):
    raise TooMany(code=429, headers={{"Retry-After": "0.2"}})
"""
    )
    assert [round(agent.run(["a"])["seconds"], 1), round(agent.receive()["seconds"], 1)] == [0.2, 0.1]
    event = agent.receive()
    assert (event["status"], event["error"]["category"]) == ("run_raised", "TooMany")


# ---- Items that fail -------------------------------------------------------------------------------------------------

FAILS = """
import asyncio
calls = []
async def run_item(item):
    calls.append(item)
    await asyncio.sleep(0)
    if item in BAD or item.startswith("bad"):
        raise KeyError(item)
    return " ".join(calls) if item == "calls" else item
"""


def failing(start, bad, **configure):
    return start(f"BAD = set({sorted(map(str, bad))!r})\n{FAILS}", **configure)


def named(event):
    return [(failed["item"], failed["items"]) for failed in event["failed_items"]]


def test_items_that_fail_in_the_last_try_are_named_and_the_others_kept(start):
    agent = failing(start, [1, 4])
    event = agent.run([str(item) for item in range(6)], names_failed_items=True)
    assert rows(event) == ["0", "2", "3", "5"]
    assert (event["returned"], named(event)) == (4, [(1, 1), (4, 1)])
    assert event["pieces"] == [[0, 2], [2, 4], [5, 2]]
    failed = event["failed_items"][1]
    assert (failed["status"], failed["error"]["category"]) == ("run_raised", "KeyError")
    first, *_ = [line for line in failed["error"]["traceback"].splitlines() if "File" in line]
    assert "score.py" in first and "in item 4 of the mini-batch: 4" in failed["error"]["traceback"]
    log = (agent.logs / failed["error"]["log"]).read_text()
    assert "run_item() of mini-batch 0, try 1, item 1: KeyError: '1'" in log and log.count("Traceback") == 2


def test_next_try_gets_only_failed_items(start):
    agent = failing(start, ["1", "3"], concurrency=2)
    items = ["0", "1", "2", "3", "calls"]
    assert agent.run(items, mini_batch=0)["status"] == "run_raised"
    event = agent.run(items, mini_batch=0, try_number=2, names_failed_items=True)
    assert event["rows"] == b"0\n2\n0 1 2 3 calls\n", "each good item ran once"
    assert (event["returned"], named(event), event["pieces"]) == (3, [(1, 1), (3, 1)], [[0, 2], [2, 2], [4, 14]])
    event = agent.run([*items, "calls"], mini_batch=1)
    assert event["status"] == "run_raised"
    event = agent.run(["calls"], mini_batch=2)
    assert rows(event)[:7] == ["0", "1", "2", "3", "calls", "1", "3"], "the second try had two items"


def test_range_names_its_items_from_its_start(start):
    agent = failing(start, [3])
    event = agent.run([str(item) for item in range(6)], items=[2, 5], names_failed_items=True)
    assert (rows(event), named(event), event["pieces"]) == (["2", "4"], [(1, 1)], [[0, 2], [2, 2]])


@pytest.mark.parametrize("items, concurrency, calls", [(5, 8, 5), (500, 1, 16), (500, 3, 20)])
def test_mini_batch_whose_items_all_fail_is_given_up(start, items, concurrency, calls):
    """Items from everywhere are tried before the rest is left."""
    agent = failing(start, range(items), concurrency=concurrency)
    event = agent.run([str(item) for item in range(items)], names_failed_items=True)
    assert (event["status"], event["error"]["category"], event["items_tried"]) == ("run_raised", "KeyError", True)
    tried = [int(item) for item in rows(agent.run(["calls"]))[:-1]]
    assert len(tried) == len(set(tried)) <= calls
    assert items == 5 or {number // 100 for number in tried} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("concurrency", [1, 8])
def test_mini_batch_is_given_up_earlier_after_others_failed(start, concurrency):
    agent = failing(start, range(500), concurrency=concurrency)
    items = [str(item) for item in range(500)]
    first = agent.run(items, try_number=1)
    assert (first["items_tried"], first["gave_up"]) == (False, True), "also before the last try"
    before = len(rows(agent.run(["calls"])))
    assert agent.run(items, doubted=True)["gave_up"]
    assert len(rows(agent.run(["calls"]))) - before == 5, "one item, three from everywhere, and `calls`"
    few = agent.run(items[:4], names_failed_items=True)
    assert (few["items_tried"], few["gave_up"]) == (True, False), "these may be the only bad ones"


def with_bad(bad):
    """Returns 500 items, of which some fail, and the others."""
    items = [f"bad {item}" if item in bad else str(item) for item in range(500)]
    return items, [item for item in items if not item.startswith("bad")]


def test_doubted_items_are_all_tried_once_one_succeeds(start):
    agent = failing(start, [], concurrency=8)
    for bad in ([], [0], range(100), range(1, 500)):
        items, good = with_bad(bad)
        assert rows(agent.run(items, names_failed_items=True, doubted=True)) == good, bad
    assert agent.finish() == []


@pytest.mark.parametrize("concurrency", [1, 8, 64])
def test_no_good_item_is_lost_to_bad_ones_in_one_place(start, concurrency):
    agent = failing(start, [], concurrency=concurrency)
    for bad in (range(100), range(8, 300), [*range(12), 499], range(0, 500, 2), range(100, 500)):
        items, good = with_bad(bad)
        event = agent.run(items, names_failed_items=True)
        assert (rows(event), event["returned"]) == (good, len(good)), bad
        assert [item for first, count in named(event) for item in range(first, first + count)] == list(bad)
        assert sum(size for _, size in event["pieces"]) == len(event["rows"]), bad


def test_answer_names_every_failed_item(start):
    agent = failing(start, range(0, 6000, 2))
    event = agent.run([str(item) for item in range(6000)], names_failed_items=True)
    assert (event["returned"], event.get("warnings", [])) == (3000, [])
    assert named(event) == [(item, 1) for item in range(0, 6000, 2)]
    assert event["pieces"] == [[item, len(str(item)) + 1] for item in range(1, 6000, 2)]


@pytest.mark.parametrize("output_format", ["csv", "jsonl", "parquet"])
def test_pieces_have_columns_of_their_own(start, output_format):
    script = """
        async def run_item(item):
            if item == "bad":
                raise ValueError
            return {item[0]: 1}
    """
    agent = start(script, output_format=output_format)
    for last in "ab":
        event = agent.run(["a1", "bad", f"{last}2"], names_failed_items=True)
        assert (event["returned"], named(event)) == (2, [(1, 1)])
        assert [item for item, _ in event["pieces"]] == [0, 2] and "columns" not in event
        tables = [pyarrow.ipc.open_stream(event["rows"][start:]) for start in (0, event["pieces"][0][1])]
        assert [table.schema.names for table in tables] == [["a"], [last]]
    agent.finish()


def test_failures_and_rows_that_do_not_fit_are_named_together(start):
    agent = start(
        """
        async def run_item(item):
            if item == "3":
                raise ValueError("bad")
            return {"total": "x" if item == "1" else 1} if item != "0" else None
        """,
        output_format="jsonl",
        row_schema={"columns": [{"name": "total", "type": "number"}]},
    )
    event = agent.run([str(item) for item in range(6)], names_failed_items=True)
    assert [(failed["item"], failed["status"]) for failed in event["failed_items"]] == [
        (1, "illegal_result"),
        (3, "run_raised"),
    ]
    assert (event["returned"], [item for item, _ in event["pieces"]]) == (4, [0, 2, 4])
    sizes = [size for _, size in event["pieces"]]
    assert sizes[0] == 0 and sum(sizes) == len(event["rows"]), "item 0 has no row"


def test_variables_of_an_item_that_failed_are_not_kept(start):
    agent = start(
        """
        import gc, weakref
        class Large: pass
        seen = []
        async def run_item(item):
            if item == "last":
                gc.collect()
                return sum(one() is not None for one in seen)
            large = Large()
            seen.append(weakref.ref(large))
            raise ValueError
        """,
        concurrency=1,
    )
    event = agent.run([*map(str, range(7)), "last"], names_failed_items=True)
    assert rows(event) == ["0"]


ITEM = "async def run_item(item): return item"
BOTH = "async def run(mini_batch): return [await one for one in map(run_item, mini_batch)]"


@pytest.mark.parametrize(
    "script, concurrency, note",
    [
        (f"{ITEM}\ndef run(mini_batch): return mini_batch", None,
         "run() of score.py is called, but run_item() is not: remove one of them"),
        (f"{ITEM}\n{BOTH}", None, None),
        (ITEM, None, None),
        (ITEM, 2, None),
        ("def run(mini_batch): return mini_batch", None, None),
        ("def run(mini_batch): return mini_batch", 2, "concurrency has no effect: "),
        ("async def run(mini_batch): return mini_batch", None, None),
        ("async def run(mini_batch): return mini_batch", 2,
         "concurrency has no effect: score.py has no `async def run_item(item)` in place of run()"),
    ],
)  # fmt: skip
def test_process_notes_ignored_functions_and_settings_once(start, script, concurrency, note):
    agent = start(script) if concurrency is None else start(script, concurrency=concurrency)
    warnings = [agent.run(["a"]).get("warnings", []) for _ in range(2)]
    assert warnings[1] == []
    assert [warning["message"].startswith(note or "") for warning in warnings[0]] == ([True] if note else [])
