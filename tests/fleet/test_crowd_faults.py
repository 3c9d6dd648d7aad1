"""Faults of one team or one machine that could harm the others: their work continues, and the fault is named."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import sqlite3
from collections.abc import Iterable, Iterator

import pytest

from faulty_fleet import COUNT, SEED, Process
from harness import file_names, wait_until
from http_server import Request
from proxy import SLOW_DOWN, AwsProxy, Fault
from targets import Target

pytestmark = pytest.mark.timeout(400)

# `GRISTMILL_POISON=10000000` sends ten million, which takes a release build three minutes.
POISON = int(os.environ.get("GRISTMILL_POISON", "200000"))
POISON_SECONDS = max(200, POISON // 1000)
# The first lines of each kind, then one a minute of each, and the other lines of a worker.
LINES_MAX = 200
# Of a message that is visible now, before its place, see services/queue/src/sqlite/store.rs.
VISIBLE_NOW = 1 << 40


def send_all(target: Target, bodies: Iterable[str]) -> None:
    """Puts messages into the task queue of the only job, as a process could that has the rights of a reducer."""
    (queue,) = target.queues("-tasks")
    with sqlite3.connect(target.folder / "queues" / f"{queue}.db", timeout=60) as database:
        rows = ((VISIBLE_NOW + place, body.encode()) for place, body in enumerate(bodies, 1))
        database.executemany("insert into message (visible_at, receive_count, body) values (?, 0, ?)", rows)
    database.close()


def left_in(target: Target) -> int:
    """Returns the number of messages in the task queues, with those that workers hold. A deleted queue has none."""
    left = 0
    for queue in target.queues("-tasks"):
        with contextlib.suppress(sqlite3.OperationalError):
            ((count,),) = target.query(queue, "select count(*) from message")
            left += count
    return left


def letters_of(target: Target) -> Iterator[dict]:
    with sqlite3.connect(target.folder / "queues/dead-letters.db", timeout=60) as database:
        for (body,) in database.execute("select body from message"):
            yield json.loads(body)
    database.close()


@pytest.mark.timeout(200 + 2 * POISON_SECONDS)
def test_good_job_goes_on_beside_poison_of_another_team(workplace, sqlite):
    """Half of the messages are no mini-batches, the others invent mini-batches of an open job of the same priority.

    That job stays open until they are put aside: what is in the queue of a job when it ends is deleted with the queue.
    """
    workplace.data(20)
    script = """
        import os
        from recorder import record, wait_for
        def run(files):
            record("run", job=os.environ["JOB"])
            if os.environ["JOB"] == "bad" and files[0].endswith("000.txt"):
                wait_for(lambda: os.path.exists(os.environ["RELEASE"]))
            return [os.path.basename(files[0])]
    """

    def job(name: str, **settings):
        variables = {"JOB": name, "RELEASE": str(workplace.folder / "release")}
        names = {"file": f"{name}.yaml", "name": name, "entry_script": f"{name}.py", "output": f"output/{name}"}
        settings = {"run_invocation_timeout": POISON_SECONDS, **settings}
        return workplace.job(script, owner=name, environment_variables=variables, **names, **settings)

    sqlite.reducer()
    bad = sqlite.enqueue(job("bad"))
    wait_until(lambda: sqlite.waiting("tasks") == 20, "the messages of the bad job")
    work = {"kind": "planned", "chunk": 2**40, "line": 0}
    numbers = range(10**6, 10**6 + POISON // 2)
    invented = (json.dumps({"job_id": bad, "mini_batch": number, "work": work}) for number in numbers)
    nonsense = (json.dumps({"job_id": bad, "poison": number}) for number in range(POISON // 2))
    send_all(sqlite, itertools.chain.from_iterable(zip(invented, nonsense, strict=True)))
    good = sqlite.enqueue(job("good"))
    command = [str(workplace.executable), "worker", "--target", sqlite.name, "--process-count", "2"]
    environment = {**workplace.environment, "GRISTMILL_CONFIG": str(workplace.folder / "gristmill.toml")}
    # They log each poison message.
    workers = [Process(command, environment, workplace.folder / f"worker-{number}.log") for number in range(2)]
    try:
        assert sqlite.lines(good) == file_names(20)
        put_aside = sqlite.waiting("dead-letters")
        assert put_aside < POISON // 2, f"the good job waited for {put_aside} of {POISON} poison messages"
        # One worker holds a mini-batch.
        wait_until(lambda: left_in(sqlite) <= 1, "every poison message put aside", POISON_SECONDS)
        (workplace.folder / "release").touch()
        sqlite.wait_for_end(bad)
    finally:
        for worker in workers:
            worker.kill()
    unreadable = set()
    for letter in letters_of(sqlite):
        assert letter["reason"], "each says why"
        # What names mini-batches of a job is dropped once the job has ended.
        if "poison" in letter["body"]:
            unreadable.add(json.loads(letter["body"])["poison"])
    assert len(unreadable) == POISON // 2, "none is lost"
    for number in range(2):
        lines = (workplace.folder / f"worker-{number}.log").read_text().splitlines()
        assert len(lines) < LINES_MAX + POISON_SECONDS // 10, lines[:100]


class Cut:
    """The way of one role to the store, which tests cut and restore."""

    def __init__(self) -> None:
        self.is_cut = False

    def __call__(self, _: random.Random, __: Request) -> Fault | None:
        return Fault("requests of a cut reducer", arrivals=0, answer=SLOW_DOWN) if self.is_cut else None


@pytest.mark.parametrize("fleet", ["sqs", "rabbitmq"], indirect=True)
def test_reducers_lose_the_store_in_turns(fleet):
    """Each of two reducers is alone with the store for a while, and each comes back to a ledger that has grown."""
    _, reducer = fleet.start()
    reducer.kill()
    cuts = [Cut(), Cut()]
    for cut in cuts:
        fleet.proxies.append(AwsProxy(fleet.components.aws_endpoint, cut, SEED))
        fleet.role("reducer", AWS_ENDPOINT_URL_S3=fleet.proxies[-1].url)
    for turn in range(6):
        cuts[turn % 2].is_cut, cuts[1 - turn % 2].is_cut = True, False
        fleet.wait_for_runs(min(fleet.runs() + COUNT // 10, COUNT - 1))
    for cut in cuts:
        cut.is_cut = False
    fleet.end()


@pytest.mark.parametrize("fleet", ["sqs", "rabbitmq"], indirect=True)
def test_reducer_cut_off_from_the_queue_alone_comes_back(fleet):
    """It still reaches the store. The other reducer commits meanwhile, until the first one is alone at the end."""
    proxy, far = fleet.way_to_queue()
    # There are results while the network is cut.
    fleet.workplace.environment["SLEEP"] = "0.08"
    _, near = fleet.start()
    cut_off = fleet.role("reducer", **far)
    for _ in range(3):
        fleet.wait_for_runs(fleet.runs() + COUNT // 20)
        proxy.cut()
        before = fleet.committed()
        wait_until(lambda before=before: fleet.committed() >= before + COUNT // 20, "commits of the other reducer")
        proxy.restore()
    assert proxy.faults["connections broken"] and proxy.faults["connections refused"], "nothing was cut off"
    assert cut_off.process.poll() is None, "the reducer keeps running without its queue"
    near.kill()
    assert fleet.committed() < COUNT - 1, "nothing is left for the first one"
    fleet.end()


NEEDS_ZONE_B = """
    import os
    from recorder import record, recorded, wait_for
    def init():
        if os.environ["ZONE"] != "b":
            record("lied")
            raise FileNotFoundError("/mnt/b/model is not there")
    def run(files):
        wait_for(lambda: recorded("lied"))
        record("run", zone=os.environ["ZONE"])
        return [os.path.basename(files[0])]
"""


def worker_that_says_b(target, name: str, zone: str):
    return target.worker("--process-count", 2, "--label", "zone=b", "--node", name, ZONE=zone)


def test_worker_whose_labels_lie_does_not_harm_the_job(workplace, sqlite):
    """It takes the job, cannot start the script, and leaves the job to the worker that can."""
    workplace.data(40)
    sqlite.reducer()
    worker_that_says_b(sqlite, "honest", "b")
    job_id = sqlite.enqueue(workplace.job(NEEDS_ZONE_B, requires={"labels": {"zone": "b"}}, speculation=False))
    wait_until(lambda: (sqlite.status(job_id)["progress"] or {}).get("processes"), "the processes of the honest worker")
    worker_that_says_b(sqlite, "liar", "a")
    assert sqlite.lines(job_id) == file_names(40)
    assert {fact["zone"] for fact in workplace.recorded("run")} == {"b"}
    assert workplace.recorded("lied")


def test_job_that_only_a_lying_worker_takes_says_why_it_fails(workplace, sqlite):
    workplace.data(4)
    sqlite.reducer()
    worker_that_says_b(sqlite, "liar", "a")
    result = sqlite.wait_for_end(
        sqlite.enqueue(workplace.job(NEEDS_ZONE_B, requires={"labels": {"zone": "b"}})), "Failed"
    )
    assert result["cause"].startswith("Node liar stopped: the script cannot start: "), result
    assert "/mnt/b/model is not there" in result["cause"], result
