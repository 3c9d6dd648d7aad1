"""Asynchronous entry scripts: `run_item`, `concurrency`, and a service that limits its rate."""

import threading
from collections import Counter

import pytest

from counted_service import ASK
from http_server import HttpServer

ASKS = f"""{ASK}
    async def init():
        global now, most
        now = most = 0

    async def run_item(item):
        global now, most
        now += 1
        most = max(most, now)
        try:
            return await asyncio.to_thread(ask, item)
        finally:
            now -= 1

    async def shutdown():
        from recorder import record
        record("most", most=most)
"""


class Service(HttpServer):
    """Answers each third request with 429 or 503, and some items with 500, once."""

    def __init__(self):
        self.asked = 0
        self.refused = 0
        self.broken = set()
        self._lock = threading.Lock()
        super().__init__(self._answer)

    def _answer(self, request):
        name = request.path.strip("/")
        with self._lock:
            self.asked += 1
            if self.asked % 3 == 0:
                self.refused += 1
                return (429 if self.asked % 2 else 503), {"Retry-After": "0.05"}, b""
            if name in self.broken:
                self.broken.remove(name)
                return 500, {}, b"out of order"
        return 200, {}, name.removesuffix(".txt").encode()


@pytest.fixture
def service():
    with Service() as service:
        yield service


def test_items_of_a_job_ask_a_service_that_limits_its_rate(workplace, service):
    """Every item has one row in its place, refused items spend no try, and a failed one is tried again."""
    workplace.data(40)
    service.broken = {"007.txt"}
    job = workplace.job(
        ASKS,
        mini_batch_size=10,
        concurrency=4,
        run_max_try=2,
        process_count_per_node=2,
        environment_variables={"SERVICE": service.url},
    )
    ended = job.run()
    assert ended.lines == [f"{number:03}" for number in range(40)]
    assert ended.items == (40, 40, 0)
    assert service.refused > 10 and not service.broken, "more refusals than there are tries"
    assert ended.result["warnings"] == 0 and ended.result["waited"]["services_milliseconds"] > 0
    assert {fact["most"] for fact in workplace.recorded("most")} == {4}


def test_waiting_for_a_service_is_no_timeout(workplace):
    """A wait that is longer than run_invocation_timeout and the overhead together kills nothing."""
    workplace.data(1)
    job = workplace.job(
        """
        answers = 0
        class TooMany(Exception):
            status, headers = 429, {"Retry-After": "4"}
        async def run(mini_batch):
            global answers
            answers += 1
            if answers == 1:
                raise TooMany
            return [f"asked {answers} times"]
        """,
        run_invocation_timeout=1,
        arguments=["--task_overhead_timeout", 1],
        run_max_try=1,
    )
    ended = job.run()
    assert ended.lines == ["asked 2 times"]
    assert ended.result["waited"] == {"limits_milliseconds": 0, "services_milliseconds": 4000}
    assert "Its processes waited 4 s for a service." in ended.log("job_result.txt")
    assert "  processes waited 4 s for a service" in workplace.command("status", ended.job_id).stdout.splitlines()


FAILS = """
    import os
    from recorder import record
    async def run_item(item):
        name = os.path.basename(item)
        record("item", name=name)
        if name in ("007.txt", "013.txt"):
            raise ValueError(f"cannot read {name}")
        return name
"""


def test_items_that_fail_are_rejected_and_no_other_runs_twice(workplace):
    workplace.data(40)
    ended = workplace.job(FAILS, mini_batch_size=10, run_max_try=3).run()
    bad = ["007.txt", "013.txt"]
    assert ended.lines == [name for number in range(40) if (name := f"{number:03}.txt") not in bad]
    assert (ended.items, ended.mini_batches, ended.result.get("extra_runs", 0)) == ((40, 38, 2), (4, 4, 0), 0)
    runs = Counter(fact["name"] for fact in workplace.recorded("item"))
    assert {name for name, count in runs.items() if count > 1} == set(bad) and runs["007.txt"] == 3
    rejects = workplace.command("rejects", ended.job_id).stdout
    assert "2 × ValueError" in rejects and "007.txt" in rejects


def test_mini_batch_with_items_that_failed_counts_as_failed(workplace):
    workplace.data(40)
    settings = {"mini_batch_size": 10, "run_max_try": 1, "error_threshold": -1}
    ended = workplace.job(FAILS, fail_fast=1, **settings).run(expect=42)
    assert "ValueError: cannot read" in ended.result["cause"]
    ended = workplace.job(FAILS, isolate="off", **settings).run()
    assert (ended.items, ended.mini_batches) == ((40, 20, 20), (4, 2, 2)), "as Azure ML counts"
