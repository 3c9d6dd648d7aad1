"""Alarms ring for real faults, and no others do: roles run, the fault happens, and its metrics meet the rules."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import time
from collections.abc import Callable

import pytest

from alarms import Moment, Phase, names, ringing, ringing_without_targets
from harness import HOLDS, wait_until
from scrape import Role
from targets import Target

# Longer than any rule looks back.
MINUTES = 120

STEADY = """
    import os, time
    from recorder import record
    def run(files):
        if os.environ.get("MOUNT") == "missing":
            record("failed")
            raise FileNotFoundError("/mnt/shared is not mounted")
        time.sleep(0.1)
        record("ran")
        return [os.path.basename(files[0])]
"""
FAILS = """
    import time
    def run(files):
        time.sleep(0.1)
        if files[0].endswith(("0.txt", "5.txt")):
            raise ValueError("this one cannot be done")
        return files
"""


class Fleet:
    """A reducer and a worker, and a job that makes progress."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.roles: dict[str, Role] = {}
        self.held: list[sqlite3.Connection] = []
        self.reducer = self.start("reducer")
        self.worker = self.start("worker", "--process-count", 2, MOUNT="there", GRISTMILL_LEASE_SECONDS="2")
        self.job_id = self.enqueue("steady", STEADY)
        self.worker.running.wait_for_record("ran", 10)
        wait_until(lambda: target.committed(self.job_id), "the first commit")

    def start(self, name: str, *arguments: object, **environment: str) -> Role:
        """Starts a role; its name begins with what it is."""
        self.roles[name] = Role(self.target, name.partition("-")[0], *arguments, **environment)
        return self.roles[name]

    def enqueue(self, name: str, script: str, **settings: object) -> str:
        return self.target.enqueue(self.target.workplace.job_of_its_own(name, 1000, script, **settings))

    def end_job(self) -> None:
        self.target.command("cancel", self.job_id, expect=0)
        self.target.wait_for_end(self.job_id, "Canceled")


def no_fault(fleet: Fleet) -> None:
    """The fleet goes on."""


def fleet_at_rest(fleet: Fleet) -> None:
    """Its job ends, and it scales to zero."""
    fleet.end_job()
    fleet.roles.pop("worker").running.kill()


def job_that_hangs(fleet: Fleet) -> None:
    fleet.end_job()
    fleet.enqueue("hangs", HOLDS, run_invocation_timeout=3600)
    fleet.worker.running.wait_for_record("held")


def job_that_no_worker_meets(fleet: Fleet) -> None:
    """The other job goes on."""
    fleet.enqueue("picky", STEADY, requires={"labels": {"zone": "b"}})

    def is_blocked() -> bool:
        return fleet.reducer.scrape().value("gristmill_jobs_waiting", reason="fitting_worker") == 1

    wait_until(is_blocked, "a blocked job")


def dead_reducer(fleet: Fleet) -> None:
    fleet.reducer.running.kill()


def dead_workers(fleet: Fleet) -> None:
    fleet.roles["worker"].running.kill()
    wait_until(lambda: fleet.target.status(fleet.job_id)["state"] == "Waiting", "a missed worker")


def broker_away(fleet: Fleet) -> None:
    """Another process holds the files of the queues. Leases that were held end once, and then all calls fail."""
    for queue in (fleet.target.folder / "queues").glob("*.db"):
        away = sqlite3.connect(queue, timeout=30, isolation_level=None)
        away.execute("begin exclusive")
        fleet.held.append(away)
    wait_until(lambda: fleet.worker.scrape().value("gristmill_leases_held") == 0, "the end of all leases")


def store_that_refuses_results(fleet: Fleet) -> None:
    """The ledger cannot be written."""
    ledger = fleet.target.folder / "store/jobs" / fleet.job_id / "ledger"
    shutil.rmtree(ledger)
    ledger.write_text("a file in its place")


def worker_that_fails_everything(fleet: Fleet) -> None:
    """The job excludes it, and gives it a try each minute."""
    worker = fleet.start("worker-2", "--process-count", 2, MOUNT="missing")
    worker.running.wait_for_record("failed", 12)
    wait_until(lambda: "is excluded" in fleet.target.command("status", fleet.job_id).stdout, "the exclusion")


def worker_that_sleeps(fleet: Fleet) -> Moment:
    """An overloaded machine: the leases of its mini-batches end before it can extend them."""
    before = Moment.of(fleet.roles)

    def has_slept() -> bool:
        fleet.worker.pause()
        time.sleep(3)
        fleet.worker.running.send(signal.SIGCONT)
        return fleet.worker.scrape().value("gristmill_leases_lost_total") >= 4

    wait_until(has_slept, "lost leases")
    return before


def unreadable_message(fleet: Fleet) -> None:
    [queue] = fleet.target.queues("-tasks")
    fleet.target.query(queue, "insert into message (visible_at, receive_count, body) values (1, 0, ?)", b"hello")

    def is_seen() -> bool:
        labels = {"messaging_destination_name": "dead-letters", "state": "visible"}
        return fleet.reducer.scrape().value("gristmill_queue_messages", **labels) > 0

    wait_until(is_seen, "a dead letter")


def mini_batches_that_fail(fleet: Fleet) -> None:
    fleet.end_job()
    job_id = fleet.enqueue("fails", FAILS, run_max_try=1, error_threshold=-1, mini_batch_error_threshold=None)
    wait_until(lambda: fleet.target.committed(job_id), "the first commit")


Fault = Callable[[Fleet], Moment | None]
# What rings for each, and for how many seconds it is recorded. One that returns a moment is recorded from then on.
FAULTS: dict[Fault, tuple[set[str], float]] = {
    no_fault: (set(), 2),
    fleet_at_rest: (set(), 2),
    job_that_hangs: ({"GristmillNoProgress"}, 2),
    job_that_no_worker_meets: ({"GristmillJobsBlocked"}, 2),
    dead_reducer: ({"GristmillReducerDown"}, 2),
    dead_workers: ({"GristmillNoWorker", "GristmillNoProgress"}, 2),
    # A call fails after ten seconds.
    broker_away: ({"GristmillQueueErrors", "GristmillNoProgress"}, 22),
    store_that_refuses_results: ({"GristmillResultsNotCommitted", "GristmillNoProgress"}, 5),
    # Longer than the minute from one try to the next, also on a busy machine.
    worker_that_fails_everything: ({"GristmillWorkerFails"}, 90),
    worker_that_sleeps: ({"GristmillLeasesLost"}, 0),
    unreadable_message: ({"GristmillDeadLetters"}, 2),
    mini_batches_that_fail: ({"GristmillMiniBatchesFail"}, 3),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_fault_rings_its_alarms_and_no_others(sqlite: Target, fault: Fault) -> None:
    expected, seconds = FAULTS[fault]
    fleet = Fleet(sqlite)
    healthy = Moment.of(fleet.roles)
    time.sleep(2)
    before = Moment.of(fleet.roles)
    begins = fault(fleet) or Moment.of(fleet.roles)
    time.sleep(seconds)
    phases = [Phase(healthy, before, MINUTES), Phase(begins, Moment.of(fleet.roles), MINUTES)]
    assert ringing(phases) == [set(), expected]


def test_job_that_begins_after_a_quiet_night_has_half_an_hour(sqlite: Target) -> None:
    fleet = Fleet(sqlite)
    fleet.end_job()
    quiet = Moment.of(fleet.roles)
    time.sleep(2)
    night = Phase(quiet, Moment.of(fleet.roles), MINUTES)
    job_that_hangs(fleet)
    begins = Moment.of(fleet.roles)
    time.sleep(2)
    hangs = Moment.of(fleet.roles)
    rings = ringing([night, Phase(begins, hangs, 25), Phase(hangs, hangs, 10)])
    assert rings == [set(), set(), {"GristmillNoProgress"}]


def test_prometheus_that_scrapes_nothing_rings() -> None:
    assert ringing_without_targets() == {"GristmillReducerDown"}


def test_every_alarm_has_a_fault() -> None:
    assert set().union(*(expected for expected, _ in FAULTS.values())) == set(names())
