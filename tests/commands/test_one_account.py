"""One account of a job: whatever tells of it tells the same, in numbers and in sentences.

These are `status`, `jobs`, the result, the reports among the logs, every answer of the portal and its page, the card
of Python, what `run` prints, and the metrics of the roles. Compared of random jobs, and of jobs that lack something:
while a mini-batch is held, at random moments, after kills, while the broker is away, and at the end.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import Page

from harness import COMPLETED, FAILED, Job, Running, Workplace, go, wait_until
from page_client import show
from portal_client import Portal
from proxy import Proxy
from scrape import Role
from targets import Target
from unfinished_listing import CHUNK, COUNT, unfinished_listing
from views import Counts, Views, counted, counts_in, of_text, wait_for_none

JOBS = int(os.environ.get("GRISTMILL_TEST_JOBS", "6"))
"""Number of random jobs."""
SCRIPT = """
    import json, os
    from recorder import record, recorded, wait_for
    KINDS = json.load(open(os.path.join(os.path.dirname(__file__), "kinds.json")))
    def run(files, context):
        names = [os.path.basename(file) for file in files]
        for name in names:
            if KINDS[name] == "bad":
                raise ValueError(f"{name} is bad")
            if KINDS[name] == "late" and not any(fact["file"] == name for fact in recorded("late")):
                record("late", file=name)
                raise RuntimeError(f"{name} fails at first")
            if KINDS[name] == "held":
                record("held", pid=os.getpid())
                wait_for(lambda: recorded("go"))
        return names
"""
# Takes its time, and fails on some files. Records what has succeeded before the engine can know it.
MOVES = """
    import os, random, time
    from recorder import record
    def run(files):
        [name] = map(os.path.basename, files)
        time.sleep(random.uniform(0.05, 0.4))
        if name.startswith("01"):
            record("failed", file=name)
            raise ValueError(f"{name} is bad")
        record("run", file=name)
        return [name]
"""
REPORT = "sys/job_report/processed_mini-batches.csv"


@dataclass
class Plan:
    """A random job, and what must come of it. One mini-batch is held until `go`."""

    seed: int
    size: int = 0
    kinds: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        self.size = chance.randint(1, 4)
        weights = {"good": 8, "bad": chance.choice([0, 1, 3]), "late": chance.choice([0, 1])}
        kinds = chance.choices(list(weights), list(weights.values()), k=chance.randint(4, 30))
        held = chance.randrange(len(kinds))
        # Nothing else happens in its mini-batch.
        first = held - held % self.size
        kinds[first : first + self.size] = ["good"] * len(kinds[first : first + self.size])
        kinds[held] = "held"
        # After three mini-batches of which no item succeeds, a node may isolate no more.
        starts = range(0, len(kinds), self.size)
        hopeless = [start for start in starts if set(kinds[start : start + self.size]) == {"bad"}]
        for start in hopeless[2:]:
            kinds[start] = "good"
        self.kinds = {f"{position:03}.txt": kind for position, kind in enumerate(kinds)}

    def batches(self) -> list[list[str]]:
        kinds = list(self.kinds.values())
        return [kinds[first : first + self.size] for first in range(0, len(kinds), self.size)]

    def expected(self, with_held: bool) -> Counts:
        """Returns the counts of the job, with or without the mini-batch that is held."""
        batches = [batch for batch in self.batches() if with_held or "held" not in batch]
        ended = [all(kind == "bad" for kind in batch) for batch in batches]
        bad = sum(batch.count("bad") for batch in batches)
        items = sum(map(len, batches)) - bad
        total = len(self.batches())
        return {
            "mini_batches": {"total": total, "succeeded": ended.count(False), "failed": ended.count(True)},
            "items": {"succeeded": items, "failed": bad},
            "retrying": 0,
            "partial": sum(0 < batch.count("bad") < len(batch) for batch in batches),
            "pending": total - len(batches),
            "listed": (ended.count(False), total, items),
        }

    def held(self) -> int:
        return next(number for number, batch in enumerate(self.batches()) if "held" in batch)


NOTHING_ENDED = {"succeeded": 0, "failed": 0}


def before(plan: Plan, planned: bool = True) -> Counts:
    """Returns the counts of a job of which nothing has ended."""
    total = len(plan.batches()) if planned else 0
    return {
        "mini_batches": {"total": total, **NOTHING_ENDED},
        "items": NOTHING_ENDED,
        "retrying": 0,
        "partial": 0,
        "pending": total,
        "listed": (0, total, 0),
    }


def write(workplace: Workplace, plan: Plan, **settings: object) -> Job:
    workplace.data(len(plan.kinds))
    workplace.write({"code/kinds.json": json.dumps(plan.kinds)})
    shape = {"mini_batch_size": plan.size, "run_max_try": 2, "process_count_per_node": 2}
    return workplace.job(SCRIPT, run_invocation_timeout=600, speculation=False, **shape, **settings)


def check_running(views: Views, held: int | None) -> None:
    """Waits until all views tell this of the mini-batch that runs; `None`: none does."""
    expected = [] if held is None else [held]
    wait_for_none(
        lambda: [f"{told} runs instead of {expected}" for told in [views.running()] if told != 5 * [expected]]
    )


def failures_told(headline: str) -> dict[str, int]:
    """Returns how many mini-batches and items have failed, as far as the headline of a job says so."""
    return {kind: int(failed) for failed, kind in re.findall(r"(\d+) of \d+ (mini-batch|item)", headline)}


def check_attempts(views: Views) -> None:
    """Waits until all views tell the same attempts as the report, which has a row for each."""
    rows = views.table_of_log(REPORT)
    done = [row for row in rows if row["Status"] == "RUN_DONE"]
    attempts = {"succeeded": len(done), "failed": len(rows) - len(done)}

    def contradictions() -> list[str]:
        series, table = views.of("series"), views.of("mini-batches?limit=500")["rows"]
        told = {
            "series": {outcome: sum(series[outcome]) for outcome in attempts},
            **{
                name: {
                    "succeeded": sum(int(row["Succeeded Attempts"]) for row in summary),
                    "failed": sum(int(row["Failed Attempts"]) for row in summary),
                }
                for name in ("process_summary", "node_summary")
                for summary in [views.table_of_log(f"sys/job_report/{name}.csv")]
            },
        }
        wrong = [f"{name}: {found} attempts instead of {attempts}" for name, found in told.items() if found != attempts]
        tries = Counter(int(row["Mini-batch Id"]) for row in rows)
        return wrong + [
            f"mini-batch {row['mini_batch']}: {row['tries']} tries instead of {tries[row['mini_batch']]}"
            for row in table
            if row["tries"] != tries[row["mini_batch"]]
        ]

    wait_for_none(contradictions)


def check_reports(views: Views, expected: Counts) -> None:
    """Compares the files among the logs."""
    counts, items = expected["mini_batches"], expected["items"]
    logs = views.log("job_result.txt")
    told = f"{counts['total']} in all, {counts['succeeded']} succeeded, {counts['failed']} failed."
    assert f"Mini-batches: {told}" in logs, logs
    assert f"{items['succeeded']} succeeded, {items['failed']} failed." in logs, logs
    [*_, overview] = views.logs(r"job_progress_overview\..*\.txt")
    [*_, processed] = re.findall(r"Processed (\d+) of (\d+) mini batch", views.log(overview))
    assert processed == (str(counts["succeeded"] + counts["failed"]), str(counts["total"])), processed
    [*_, progress] = views.logs(r"sys/metrics/.*/progress\.csv")
    [*_, last] = views.table_of_log(progress)
    numbers = [int(last[f"{kind} Tasks"]) for kind in ("Total", "Scheduled", "Completed", "Failed")]
    assert numbers == [counts["total"], counts["total"], counts["succeeded"], counts["failed"]], last
    # Two reducers may commit two tries in another order than that in which they ran.
    rows = sorted(views.table_of_log(REPORT), key=lambda row: row["Process Start Time (UTC)"])
    last_tries = {row["Mini-batch Id"]: row for row in rows}.values()
    done = [row for row in last_tries if row["Status"] == "RUN_DONE"]
    assert len(done) == counts["succeeded"], rows
    assert sum(int(row["Succeeded"]) for row in done) == items["succeeded"], rows
    assert sum(int(row["Failed"]) for row in last_tries) == items["failed"], rows
    rounds = [float(one["at"]) for one in views.status()["result"].get("rounds", [])[1:]]
    tries = [(row["Mini-batch Id"], bisect(rounds, milliseconds(row))) for row in rows]
    assert f"Retries: {len(tries) - len(set(tries))}." in logs, logs
    successes = [try_ for try_, row in zip(tries, rows, strict=True) if row["Status"] == "RUN_DONE"]
    assert len(set(successes)) == len(successes), rows
    rejects = sum(int(row["items"]) for row in views.table_of_log("rejects.csv")) if items["failed"] else 0
    assert rejects == items["failed"], rejects


def milliseconds(row: dict[str, str]) -> float:
    """Returns when a try began."""
    return datetime.fromisoformat(row["Process Start Time (UTC)"]).replace(tzinfo=UTC).timestamp() * 1000


def check_end(views: Views, plan: Plan) -> None:
    expected = plan.expected(with_held=True)
    views.wait_for(expected)
    views.wait_for_condition("Completed")
    check_attempts(views)
    check_reports(views, expected)
    items = expected["items"]
    rejects = views.of("rejects")
    assert rejects["items"] == items["failed"], rejects
    bad = [number for number, batch in enumerate(plan.batches()) if 0 < batch.count("bad") < len(batch)]
    for number in bad[:3]:
        rejected = views.of(f"mini-batches/{number}")["rejected"]
        assert rejected["items"] == plan.batches()[number].count("bad"), rejected
        assert all("is bad" in one["error"]["message"] for one in rejected["shown"]), rejected
    job = views.of()
    failures = {"mini-batch": expected["mini_batches"]["failed"], "item": items["failed"]}
    succeeded = expected["mini_batches"]["succeeded"]
    if items["failed"] == 0:
        assert f": {succeeded} mini-batch" in job["sentence"], job["sentence"]
    said, card = views.python()
    for text in (job["result"].get("headline", ""), job["sentence"], card.get("headline", ""), said):
        for kind, failed in failures_told(text.partition("with failures")[2]).items():
            assert failed == failures[kind], text
    # What `run` prints at the end is what `status` prints then.
    assert of_text(views.text("status", views.job_id))["mini_batches"] == expected["mini_batches"]


def check_progress_line(running: Running, expected: Counts) -> None:
    """Waits for a line of `run` with these counts. It prints one every five seconds."""
    counts, items = expected["mini_batches"], expected["items"]["failed"]
    wanted = [
        f"{counts['succeeded'] + counts['failed']} of {counts['total']} mini-batch",
        *([f"{counts['failed']} failed"] if counts["failed"] else []),
        *([f"{items} item"] if items else []),
    ]

    def line() -> bool:
        text = running.process.stderr.readline().decode()
        assert text, f"no line with {wanted}: {running.wait()}"
        # The numbers in their order, and no others of their kind.
        parts = [part for part in text.strip().split(", ") if re.search(r"mini-batch|failed|tried again", part)]
        return len(parts) == len(wanted) and all(map(str.startswith, parts, wanted))

    wait_until(line, f"a line with {wanted}", 60)


def check_metrics(worker: Role, views: Views, held: bool) -> None:
    """Waits until a worker has counted the attempts that the portal shows."""

    def contradictions() -> list[str]:
        scrape, series = worker.scrape(), views.of("series")
        attempts = {
            outcome: sum(scrape.values("gristmill_attempts_total", outcome=outcome))
            for outcome in ("succeeded", "run_raised")
        }
        told = {
            "succeeded": (attempts["succeeded"], sum(series["succeeded"])),
            "failed": (attempts["run_raised"], sum(series["failed"])),
            "running": (scrape.value("gristmill_processes", state="run"), int(held)),
            "held": (scrape.value("gristmill_leases_held"), int(held)),
            "open": (scrape.value("gristmill_jobs_open"), int(held)),
        }
        for number, reducer in enumerate(views.reducers):
            scrape = reducer.scrape()
            told[f"open, of reducer {number}"] = (scrape.value("gristmill_jobs_open"), int(held))
            told[f"wanted, of reducer {number}"] = (
                sum(scrape.values("gristmill_processes_wanted")),
                int(held),
            )
        return [
            f"metrics: {name} is {found}, and should be {right}"
            for name, (found, right) in told.items()
            if found != right
        ]

    wait_for_none(contradictions)


@pytest.mark.parametrize("seed", range(JOBS))
def test_every_view_of_a_job_tells_the_same(workplace: Workplace, sqlite: Target, seed: int) -> None:
    plan = Plan(seed)
    job = write(workplace, plan)
    if seed % 3 == 2:
        of_a_target(sqlite, plan, job)
    else:
        of_this_machine(workplace, plan, job, is_killed=seed % 3 == 1)


def of_a_target(sqlite: Target, plan: Plan, job: Job) -> None:
    """Two reducers, one of which is killed."""
    reducers = [Role(sqlite, "reducer"), Role(sqlite, "reducer")]
    job_id, held = sqlite.enqueue(job), plan.expected(with_held=False)
    worker = Role(sqlite, "worker", "--process-count", 2)
    worker.running.wait_for_record("held")
    views = Views(sqlite.workplace, job_id, sqlite.name)
    views.reducers = reducers[:]
    views.wait_for(held)
    check_running(views, plan.held())
    views.wait_for_condition("Running")
    check_metrics(worker, views, held=True)
    views.kill(reducers[0])
    views.wait_for(held)
    go(sqlite.workplace)
    sqlite.wait_for_end(job_id)
    check_end(views, plan)
    check_metrics(worker, views, held=False)
    ended = [reducer.value("gristmill_jobs_ended_total") for reducer in [reducers[1].scrape(), *views.ended_reducers]]
    assert sum(ended) == 1, ended
    rows, scrape = views.table_of_log(REPORT), worker.scrape()
    for outcome in ("succeeded", "failed"):
        items = sum(int(row[outcome.capitalize()]) for row in rows)
        assert sum(scrape.values("gristmill_items_total", outcome=outcome)) == items, outcome


def of_this_machine(workplace: Workplace, plan: Plan, job: Job, is_killed: bool) -> None:
    """`run` with its summary for people; if it is killed, `retry` with one for programs."""
    held, expected = plan.expected(with_held=False), plan.expected(with_held=True)
    running = workplace.start("run", job.file)
    [fact] = running.wait_for_record("held")
    [job_id] = workplace.job_ids()
    views = Views(workplace, job_id)
    views.wait_for(held)
    check_running(views, plan.held())
    views.wait_for_condition("Running")
    if is_killed:
        running.kill(fact["pid"])
        views.wait_for(held)
        check_running(views, None)
        views.wait_for_condition("Interrupted", "the process that ran it has ended")
        go(workplace)
        ended = job.retry(job_id)
        assert ended.result == views.status()["result"]
        assert counted(ended.result) == {key: expected[key] for key in ("mini_batches", "items", "retrying")}
    else:
        check_progress_line(running, held)
        go(workplace)
        ended = running.wait()
        assert ended.exit_status == COMPLETED, str(ended)
        assert ended.stdout == views.text("status", job_id)
        assert of_text(ended.stdout)["items"] == expected["items"], str(ended)
    check_end(views, plan)
    assert f"Deliveries lost with their node: {int(is_killed)}." in views.log("job_result.txt")


# ---- what a job lacks -----------------------------------------------------------------------------------------------


@pytest.mark.xdist_group("page")
def test_every_view_and_the_page_say_what_a_job_lacks(
    workplace: Workplace, sqlite: Target, open_page: Callable[..., Page]
) -> None:
    """It has neither role, then a reducer, then both, then no worker, then neither again."""
    plan = Plan(2)
    job_id = sqlite.enqueue(write(workplace, plan))
    views, held = Views(workplace, job_id, sqlite.name), plan.expected(with_held=False)
    page = open_page(views.portal.address)
    show(page, f"jobs/{job_id}")

    def page_says(lack: str) -> None:
        wait_until(lambda: lack in page.locator(".sentence").inner_text(), lack, 30)

    page_says("no reducer has looked at it yet")
    views.wait_for_condition("Queued", "no reducer has looked at it yet; start one with: gristmill reducer --target")
    reducer = Role(sqlite, "reducer")
    views.reducers = [reducer]
    views.wait_for_condition("Queued", "no worker is running; start one with: gristmill worker --target")
    views.wait_for(before(plan))
    check_page(page, views, "Queued", before(plan), running=0)
    assert "no worker is running" in page.locator(".sentence").inner_text()
    assert reducer.scrape().value("gristmill_processes_wanted") == len(plan.batches())

    worker = Role(sqlite, "worker", "--process-count", 2)
    worker.running.wait_for_record("held")
    wait_until(lambda: sqlite.committed(job_id) > 0, "results", 30)
    status, job = views.status(), views.of()
    assert status["state"] == "Running", status
    assert (status["progress"]["processes"] > 0, job["progress"]["processes"] > 0) == (True, True), "as soon as results"
    views.wait_for(held)
    check_running(views, plan.held())
    views.wait_for_condition("Running")
    check_page(page, views, "Running", held, running=1)

    worker.running.kill()
    wait_until(lambda: views.of()["state"] == "Waiting", "a job that waits, in the portal", 30)
    waiting = wait_until(lambda: (status := views.status())["state"] == "Waiting" and status, "a job that waits", 30)
    row, job = views.row(), views.of()
    told = {
        "status --json": (waiting["progress"]["processes"], len(waiting["progress"]["running"])),
        "portal": (job["progress"]["processes"], len(job["progress"]["running"])),
        "jobs --json": (row["processes"], 0),
    }
    assert told == dict.fromkeys(told, (0, 0)), "the processes of the lost worker do not count"
    views.wait_for_condition("Waiting", "no worker has been heard from since")
    views.wait_for(held)
    check_running(views, None)
    check_page(page, views, "Waiting", held, running=0)
    page_says("no worker has been heard from since")
    views.kill(reducer)
    views.wait_for_condition("Waiting", "no reducer has been heard from since")
    views.wait_for(held)

    go(workplace)
    views.reducers = [Role(sqlite, "reducer")]
    Role(sqlite, "worker", "--process-count", 2)
    sqlite.wait_for_end(job_id)
    check_end(views, plan)

    def workers_of_the_job() -> list[str]:
        workers = views.portal.get("/target")["workers"]
        return [f"{worker} works on an ended job" for worker in workers if worker["job_id"] == job_id]

    wait_for_none(workers_of_the_job, 15)


def test_card_names_only_a_portal_that_shows_the_job(workplace: Workplace, sqlite: Target) -> None:
    """A portal of this machine shows no job of a target."""
    workplace.data(1)
    views = Views(workplace, sqlite.enqueue(workplace.job("def run(files): return files")), sqlite.name)
    for _ in range(2):
        told = views.python()[1].get("portal", "")
        assert not told or told.startswith(views.portal.url) or f"--target {sqlite.name}" in told, told
        Portal(workplace)


# ---- jobs that do not complete --------------------------------------------------------------------------------------


def check_cause(views: Views, state: str, cause: str) -> None:
    """Waits until all views tell the counts of the result, and says why the job ended."""
    result, cells = views.status()["result"], views.counts()["map"]
    counts = counted(result)
    listed = (counts["mini_batches"]["succeeded"], counts["mini_batches"]["total"], counts["items"]["succeeded"])
    views.wait_for({**counts, "partial": cells["partial"], "pending": cells["pending"], "listed": listed})
    # What was to be tried again is neither ended nor pending.
    assert (
        cells["pending"] + counts["retrying"] + sum(counts["mini_batches"][end] for end in NOTHING_ENDED)
        == (counts["mini_batches"]["total"])
    ), cells
    views.wait_for_condition(state)
    said, card = views.python()
    told = {
        "result": result["cause"],
        "status": views.text("status", views.job_id),
        "jobs --json": views.row()["cause"],
        "jobs of the portal": views.row_of_portal()["cause"],
        "portal": views.of()["sentence"],
        "card": card["cause"],
        "Python": said,
        "job_result.txt": views.log("job_result.txt"),
    }
    assert cause in result["cause"]
    assert [name for name, text in told.items() if result["cause"].rstrip(".") not in text] == [], told


def test_views_agree_on_a_job_that_fails(workplace: Workplace) -> None:
    """Its limit is exceeded while another process still works."""
    workplace.data(20)
    job = workplace.job(MOVES, process_count_per_node=2, run_max_try=2, speculation=False, error_threshold=2)
    ended = job.run(expect=FAILED)
    check_cause(Views(workplace, ended.job_id), "Failed", "exceeds error threshold 2")


def test_views_agree_on_a_job_that_is_canceled(workplace: Workplace, sqlite: Target) -> None:
    plan = Plan(5)
    sqlite.reducer()
    job_id = sqlite.enqueue(write(workplace, plan))
    sqlite.worker("--process-count", 2).wait_for_record("held")
    views = Views(workplace, job_id, sqlite.name)
    views.wait_for(plan.expected(with_held=False))
    sqlite.command("cancel", job_id, expect=0)
    sqlite.wait_for_end(job_id, "Canceled")
    check_cause(views, "Canceled", "")


# ---- the broker is away ---------------------------------------------------------------------------------------------


@pytest.fixture
def away(workplace: Workplace, rabbitmq: Target):
    """The way of every role and command to the broker, which can be cut."""
    port = rabbitmq.components.amqp_port
    proxy = Proxy(port)
    rabbitmq.write(queue=f"{rabbitmq.settings['queue']}&heartbeat=5".replace(f":{port}/", f":{proxy.port}/"))
    yield proxy
    workplace.kill_what_still_runs()
    proxy.close()


def hold_on(rabbitmq: Target, plan: Plan) -> Views:
    """Enqueues a job, and waits until one of its mini-batches is held and all others have ended."""
    workplace = rabbitmq.workplace
    reducer, worker = Role(rabbitmq, "reducer"), Role(rabbitmq, "worker", "--process-count", 2)
    views = Views(workplace, rabbitmq.enqueue(write(workplace, plan)), rabbitmq.name)
    views.reducers = [reducer]
    worker.running.wait_for_record("held")
    views.wait_for(plan.expected(with_held=False))
    check_running(views, plan.held())
    return views


def test_views_agree_and_say_so_while_the_broker_is_away(rabbitmq: Target, away: Proxy) -> None:
    """All counts stay as they were. Afterwards the job ends, and all views agree on its end."""
    plan = Plan(5)
    views = hold_on(rabbitmq, plan)
    assert [queue["problem"] for queue in views.portal.get("/target")["queues"] if queue["problem"]] == []
    away.cut()
    wait_until(
        lambda: any(queue["problem"] for queue in views.portal.get("/target")["queues"]),
        "queues that do not answer",
        60,
    )
    for _ in range(3):
        views.wait_for(plan.expected(with_held=False))
        time.sleep(1)

    def silent() -> list[str]:
        # The others start processes.
        if not re.search("broker|queue", sentence := views.of()["sentence"]):
            return [f"portal does not say so: {sentence}"]
        said, card = views.python()
        told = {
            "status --json": json.dumps([views.status()["hint"], (views.status()["progress"] or {}).get("trouble")]),
            "status": views.text("status", views.job_id),
            "jobs": views.text("jobs"),
            "card": json.dumps(card),
            "Python": said,
        }
        return [f"{name} does not say so: {text}" for name, text in told.items() if not re.search("broker|queue", text)]

    wait_for_none(silent)
    away.restore()
    go(rabbitmq.workplace)
    rabbitmq.wait_for_end(views.job_id)
    check_end(views, plan)


# ---- plans that are not complete ------------------------------------------------------------------------------------


def test_no_view_invents_a_total_while_the_inputs_are_listed(workplace: Workplace, sqs: Target) -> None:
    with unfinished_listing(workplace, sqs) as (job_id, _):
        views = Views(workplace, job_id, sqs.name)
        wait_until(lambda: sqs.committed(job_id) == CHUNK, "a chunk")
        (said, card), job_of_portal = views.python(), views.of()
        texts = {
            "status": views.text("status", job_id),
            "jobs": views.text("jobs"),
            "portal": job_of_portal["sentence"],
            "Python": said,
            "card": f"{card['mini-batches']}; {card['items']}",
        }
    sqs.wait_for_end(job_id)
    everything = {"total": COUNT, "succeeded": COUNT, "failed": 0}
    assert views.status()["result"]["mini_batches"] == everything
    assert all(str(CHUNK) in text for text in texts.values()), texts
    invented = {name: text for name, text in texts.items() if re.search(rf"{CHUNK}(/| of )(0|{CHUNK})\b", text)}
    assert invented == {}


# ---- failures -------------------------------------------------------------------------------------------------------


def test_causes_of_failures_count_attempts(workplace: Workplace) -> None:
    """Each file of 3 fails once in a mini-batch and once alone, so there is one failed attempt for each mini-batch."""
    workplace.data(6)
    script = """
        import os
        def run(files):
            for file in files:
                if os.path.basename(file) in ("000.txt", "001.txt", "003.txt"):
                    raise ValueError(f"{os.path.basename(file)} is bad")
            return files
    """
    ended = workplace.job(script, mini_batch_size=3, run_max_try=2).run()
    views = Views(workplace, ended.job_id)
    failed = [row for row in ended.attempts() if row["Status"] != "RUN_DONE"]
    told = {
        "result": sum(cause["attempts"] for cause in ended.result["failures"]),
        "portal": sum(failure["attempts"] for failure in views.of()["failures"]),
        "series": sum(views.of("series")["failed"]),
    }
    assert told == dict.fromkeys(told, len(failed)), told


# ---- moments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_no_view_contradicts_itself_or_goes_back_at_random_moments(
    workplace: Workplace, sqlite: Target, seed: int
) -> None:
    """While a job runs, no view counts more than has happened, or less than it counted before."""
    workplace.data(40)
    job = workplace.job(MOVES, process_count_per_node=2, run_max_try=2, speculation=False)
    chance = random.Random(seed)
    if seed % 2:
        running = job.start()
        running.wait_for_record("run")
        views = Views(workplace, workplace.job_ids()[0])
    else:
        views = Views(workplace, sqlite.enqueue(job), sqlite.name)
        sqlite.reducer()
        sqlite.worker("--process-count", 2).wait_for_record("run")
    looks: dict[str, Callable[[], Counts]] = {
        "status --json": lambda: consistent(views.status()),
        "status": lambda: of_text(views.text("status", views.job_id)),
        "jobs --json": lambda: views.row(),
        "portal": lambda: consistent_job(views.of()),
        "jobs of the portal": lambda: views.row_of_portal(),
        "card": lambda: counts_in(views.python()[1].get("mini-batches", "")),
    }
    latest: dict[str, dict[str, int]] = {}
    wrong: list[str] = []

    def look(name: str) -> None:
        counts = looks[name]().get("mini_batches") or NOTHING_ENDED
        succeeded = {fact["file"] for fact in workplace.recorded("run")}
        failed = Counter(fact["file"] for fact in workplace.recorded("failed"))
        happened = {"succeeded": len(succeeded), "failed": sum(tries >= 2 for tries in failed.values())}
        for outcome, most in happened.items():
            least = latest.get(name, NOTHING_ENDED)[outcome]
            if not least <= counts[outcome] <= most:
                wrong.append(f"{name}: {counts[outcome]} {outcome}; before {least}, and {most} have")
        latest[name] = counts

    jobs = workplace.home / "jobs" if seed % 2 else sqlite.folder / "store/jobs"
    while not (jobs / views.job_id / "result.json").exists():
        time.sleep(chance.uniform(0, 0.35))
        look(chance.choice(list(looks)))
    # The portal looks at a job of a target every two seconds.
    wait_until(lambda: views.of()["result"], "the end in the portal", 30)
    for name in looks:
        look(name)
    assert wrong == []
    assert [latest[name]["succeeded"] for name in looks] == [30] * len(looks), latest
    assert [latest[name]["failed"] for name in looks] == [10] * len(looks), latest


def consistent(status: dict[str, Any]) -> Counts:
    """Returns the counts of a status whose numbers fit together."""
    told = status["result"] or status["progress"]
    if told is None:
        return {}
    counts = told["mini_batches"]
    # Each mini-batch has one item.
    for outcome in ("succeeded", "failed"):
        assert told["items"][outcome] == counts[outcome], told
    assert counts["succeeded"] + counts["failed"] + told["retrying"] <= (counts["total"] or 40), told
    assert len(told.get("running", [])) <= 2, told
    return counted(told)


def consistent_job(job: dict[str, Any]) -> Counts:
    """Returns the counts of an answer of the portal whose numbers and sentences fit together."""
    consistent(job)
    counts, told = counted(job), counts_in(job["sentence"])
    if job["result"] is None and told:
        assert told == {key: counts[key] for key in told}, job["sentence"]
    [gauge] = [gauge["value"] for gauge in job["gauges"] if gauge["key"] == "error_threshold"]
    assert gauge == counts["items"]["failed"], job["gauges"]
    return counts


# ---- the page -------------------------------------------------------------------------------------------------------


def facts_of(page: Page) -> dict[str, str]:
    """Returns the facts of the overview, by their names."""
    facts = page.locator(".fact").evaluate_all(
        "all => all.map(one => [one.querySelector('dt').textContent, one.querySelector('dd').textContent])"
    )
    return {name: " ".join(value.split()) for name, value in facts}


def check_page(page: Page, views: Views, state: str, expected: Counts, running: int) -> None:
    """Waits until the pages of the portal tell these counts. It stays on the overview."""
    counts, items = expected["mini_batches"], expected["items"]
    show(page, f"jobs/{views.job_id}/mini-batches")
    is_open = state not in ("Completed", "Failed")
    legend = {
        "succeeded": counts["succeeded"],
        "failed": counts["failed"],
        "to be tried again": 0,
        **({"running": running} if is_open else {}),
        "pending": expected["pending"] - running,
    }

    def of_map() -> list[str]:
        keys = [" ".join(key.split()) for key in page.locator("footer .key").all_inner_texts()]
        return [
            f"map: {name} {number} is not in {keys}"
            for name, number in legend.items()
            if f"{name} {number}" not in keys
        ]

    wait_for_none(of_map)
    show(page, f"jobs/{views.job_id}")
    facts = {
        "Succeeded": f"{counts['succeeded']} of {counts['total']}",
        "Failed": f"{counts['failed']}",
        "Items succeeded": f"{items['succeeded']}",
        "Items failed": f"{items['failed']}",
    }
    if is_open:
        facts.update({"Running": f"{running}", "To be tried again": "0"})

    def of_overview() -> list[str]:
        job, told = views.of(), facts_of(page)
        badge, sentence = page.locator(".title .badge").inner_text(), page.locator(".sentence").inner_text()
        wrong = [
            f"{name} is {told.get(name)}, and should be {fact}"
            for name, fact in facts.items()
            # Items that succeeded are shown of those that are known.
            if fact not in (told.get(name), told.get(name, "").partition(" of ")[0])
        ]
        wrong += [] if badge == job["state"] == state else [f"the badge says {badge}, the portal {job['state']}"]
        said = counts_in(sentence).get("mini_batches", counts) if state != "Completed" else counts
        wrong += [] if said == counts else [f"the sentence says {sentence}"]
        # Its rest changes with the time.
        hint = (job["hint"] or "").partition(" (")[0]
        wrong += [] if hint in sentence else [f"{sentence} lacks {hint}"]
        gauge = page.locator(".gauge").filter(has_text="Failed items").first.inner_text()
        wrong += [] if re.search(rf"\b{items['failed']} item", gauge) else [f"the limit says {gauge}"]
        return wrong

    wait_for_none(of_overview)


@pytest.mark.xdist_group("page")
@pytest.mark.parametrize("seed", [1, 5])
def test_page_tells_the_numbers_of_the_portal(workplace: Workplace, open_page: Callable[..., Page], seed: int) -> None:
    plan = Plan(seed)
    job, held = write(workplace, plan), plan.expected(with_held=False)
    running = job.start()
    [fact] = running.wait_for_record("held")
    views = Views(workplace, workplace.job_ids()[0])
    page = open_page(views.portal.address)
    views.wait_for(held)
    check_page(page, views, "Running", held, running=1)
    running.kill(fact["pid"])
    check_page(page, views, "Interrupted", held, running=0)
    go(workplace)
    job.retry(views.job_id)
    check_page(page, views, "Completed", plan.expected(with_held=True), running=0)
    check_list(page, views, plan.expected(with_held=True))


def check_list(page: Page, views: Views, expected: Counts) -> None:
    """Compares the row of a job in the list."""
    show(page, "")
    counts = expected["mini_batches"]
    row = page.locator("tr.opens")
    wait_until(lambda: row.locator(".badge").inner_text() == views.row()["state"], "the list", 30)
    assert f"{counts['succeeded']} of {counts['total']}" in " ".join(row.inner_text().split()).replace(" / ", " of ")
    assert row.locator("[data-label=failed]").inner_text() == str(counts["failed"])
