"""``context.limit``: questions to the agent, and its answers."""

import pytest
from agent import rows

LIMITS = {"requests_per_minute": 60, "tokens_per_minute": 1000, "concurrent": 2}


def acquire(agent):
    event = agent.receive()
    assert event["frame"] == "acquire", event
    return event


def grant(agent, *asked):
    agent.send({"frame": "granted", "ids": [one["id"] for one in asked]})


@pytest.mark.parametrize(
    ("function", "inside"),
    [
        ("def run(files, context)", "with context.limit.acquire(tokens=7): pass"),
        ("def run(files, context)", "context.limit.acquire(tokens=7).release()"),
        ("async def run(files, context)", "async with context.limit.acquire(tokens=7): pass"),
        ("async def run(files, context)", "(await context.limit.acquire(tokens=7)).release()"),
    ],
)
def test_script_waits_until_the_agent_allows_the_request(start, function, inside):
    agent = start(f"{function}:\n    print('before')\n    {inside}\n    return files", limits=LIMITS)
    agent.hand_over(agent.files(["a"]))
    asked = acquire(agent)
    assert (asked["requests"], asked["tokens"], asked["place"]) == (1, 7, True)
    grant(agent, asked)
    assert agent.receive() == {"frame": "release", "id": asked["id"], "rows": b""}
    assert rows(agent.receive()) == ["a"]
    assert agent.finish() == []


def test_job_without_limits_never_asks(start):
    agent = start("def run(files, context):\n    with context.limit.acquire(tokens=9): return files")
    assert rows(agent.run(["a"])) == ["a"]


def test_threads_and_later_mini_batches_do_not_disturb_the_answers(start):
    agent = start(
        """
        from concurrent.futures import ThreadPoolExecutor
        def run(files, context):
            def one(file):
                with context.limit.acquire():
                    return file
            with ThreadPoolExecutor(3) as pool:
                return list(pool.map(one, files))
        """,
        limits={"requests_per_minute": 60},
    )
    agent.hand_over(agent.files(["a", "b", "c"]), agent.files(["d"]))
    asked = [acquire(agent) for _ in range(3)]
    agent.hand_over(agent.files(["e"]))
    grant(agent, *reversed(asked))
    assert rows(agent.receive()) == ["a", "b", "c"]
    for item in "de":
        grant(agent, acquire(agent))
        assert rows(agent.receive()) == [item]


def test_each_call_of_run_item_is_one_request(start):
    """The first acquisition in a call adds its tokens to the request of the call."""
    agent = start(
        """
        async def run_item(item, context):
            async with context.limit.acquire(tokens=5):
                pass
            await context.limit.acquire(tokens=6)
            return item
        """,
        limits=LIMITS,
    )
    agent.hand_over(agent.files(["a"]))
    for requests, tokens, place in ((1, 0, True), (0, 5, False), (1, 6, True)):
        asked = acquire(agent)
        assert (asked["requests"], asked["tokens"], asked["place"]) == (requests, tokens, place)
        grant(agent, asked)
    assert agent.receive()["id"] == 1
    assert agent.receive()["id"] == asked["id"], "the end of the mini-batch releases what the script did not"
    assert rows(agent.receive()) == ["a"]


def test_canceled_wait_is_withdrawn(start):
    agent = start(
        """
        import asyncio
        async def run(files, context):
            try:
                await asyncio.wait_for(context.limit.acquire(tokens=3), 0.05)
            except asyncio.TimeoutError:
                return ["late"]
        """,
        limits=LIMITS,
    )
    agent.hand_over(agent.files(["a"]))
    asked = acquire(agent)
    assert agent.receive() == {"frame": "release", "id": asked["id"], "rows": b""}
    assert rows(agent.receive()) == ["late"]


def test_impossible_question_is_an_error(start):
    agent = start("def run(files, context): eval(f'context.limit.acquire({files[0]})')", limits=LIMITS)
    for wrong, message in (
        ("tokens=1001", "the job allows 1000 in a minute (limits.tokens_per_minute)"),
        ("tokens=-1", "must be an integer from 0"),
        ("tokens=1.5", "must be an integer from 0"),
        ("requests=True", "must be an integer from 0"),
    ):
        event = agent.run([wrong])
        expected = ("run_raised", f"limit.acquire({wrong}): {message}")
        assert (event["status"], event["error"]["message"]) == expected


def test_with_in_a_coroutine_names_the_remedy(start):
    agent = start("async def run(files, context):\n    with context.limit.acquire(): return files", limits=LIMITS)
    event = agent.run(["a"])
    assert "async with context.limit.acquire" in event["error"]["message"]


def test_child_process_of_the_script_cannot_answer(start):
    """A forked child ends without a frame, even while another thread of its parent sends one."""
    agent = start(
        """
        import os
        def run(files, context):
            if (child := os.fork()) == 0:
                return files
            os.waitpid(child, 0)
            return ["parent"]
        """,
        limits=LIMITS,
    )
    assert rows(agent.run(["a"])) == ["parent"]
    assert agent.finish() == []
