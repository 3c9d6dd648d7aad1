"""Entry scripts with ``async def`` functions, ``run_item``, and services that limit their rate."""

import pyarrow
import pytest

LIMITED = """
class TooMany(Exception):
    def __init__(self, **attributes):
        super().__init__("too many requests")
        vars(self).update(attributes)
class Response:
    def __init__(self, status, headers=()):
        self.status_code, self.headers = status, dict(headers)
"""


def rows(event):
    assert event["status"] == "succeeded", event
    return event["rows"].decode().split()


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


def test_item_of_a_table_is_a_dictionary_and_none_is_no_row(start):
    pytest.importorskip("pandas")
    agent = start("async def run_item(item): return f\"{item['b']}{item['a']}\" if item['a'] else None", tabular=True)
    table = pyarrow.record_batch({"a": [1, None, 3], "b": ["x", "y", "z"]})
    event = agent.run_table(table)
    assert rows(event) == ["x1.0", "z3.0"]
    assert event["returned"] == 3, "an item without a row has succeeded"


def test_first_error_names_its_item_and_ends_the_others(start):
    agent = start(
        """
        import asyncio, sys
        ended = []
        async def run_item(item):
            try:
                if item == "c":
                    raise ValueError("no total")
                await asyncio.sleep(60 if item != "calm" else 0)
            finally:
                ended.append(item)
            return " ".join(ended)
        """
    )
    event = agent.run(["a", "b", "c", "d"])
    assert (event["status"], event["error"]["message"]) == ("run_raised", "no total")
    first, *_ = [line for line in event["error"]["traceback"].splitlines() if "File" in line]
    assert "score.py" in first and "asyncio" not in event["error"]["traceback"]
    assert "in item 2 of the mini-batch: c" in event["error"]["traceback"]
    assert rows(agent.run(["calm"])) == ["c", "a", "b", "d", "calm"]
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


@pytest.mark.parametrize(
    "answer",
    [
        "raise TooMany(code=429, headers={'Retry-After': '0.05'})",
        "raise TooMany(status=429, headers={'retry-after-ms': '50'})",
        "raise TooMany(response=Response(429, {'RETRY-AFTER': '0.05'}))",
        "raise TooMany(response=Response(503, {'Retry-After': '0.05'}))",
        "raise TooMany(response={'ResponseMetadata': {'HTTPStatusCode': 429, 'HTTPHeaders': {'retry-after': '0.05'}}})",
        "return Response(429, {'Retry-After': 'Wed, 21 Oct 2015 07:28:00 GMT'})",
    ],
)
@pytest.mark.parametrize("function", ["run", "run_item"])
def test_service_that_limits_its_rate_is_asked_again(start, answer, function):
    agent = start(
        f"""{LIMITED}
answers = 0
async def {function}(given):
    global answers
    answers += 1
    if answers < 3:
        {answer}
    return list(given) if {function == "run"} else given
"""
    )
    events = [agent.run(["a"])]
    while events[-1]["frame"] == "rate_limited":
        events.append(agent.receive())
    *waits, ended = events
    assert rows(ended) == ["a"]
    assert all(wait["sequence"] == 1 and 0 <= wait["seconds"] <= 0.06 for wait in waits)
    assert len(waits) == (0 if "2015" in answer else 2)
    [warning] = ended["warnings"]
    assert "a service that limits its rate (2 answers with status 429 or 503)" in warning["message"]


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


@pytest.mark.parametrize(
    "answer",
    ["raise TooMany(code=500, headers={'Retry-After': '1'})", "raise TooMany(status_code=503)", "raise TooMany()"],
)
def test_other_errors_are_errors(start, answer):
    agent = start(f"{LIMITED}\nasync def run(mini_batch):\n    {answer}")
    event = agent.run(["a"])
    assert (event["status"], event["error"]["category"]) == ("run_raised", "TooMany")


def test_plain_script_gets_its_error(start):
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
