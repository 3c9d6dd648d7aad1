"""One account of a job: `status`, `jobs`, the result, the reports and every answer of the portal say the same.

Of random jobs: while a mini-batch is held, after kills, and at the end.
"""

from __future__ import annotations

import base64
import json
import os
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from harness import COMPLETED, Workplace, go, wait_until
from portal_client import Portal

JOBS = int(os.environ.get("GRISTMILL_TEST_JOBS", "12"))
"""Number of random jobs."""
RUNNING = 5
"""The status of a bar of the timeline."""
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
        self.kinds = {f"{position:03}.txt": kind for position, kind in enumerate(kinds)}

    def batches(self) -> list[list[str]]:
        kinds = list(self.kinds.values())
        return [kinds[first : first + self.size] for first in range(0, len(kinds), self.size)]

    def expected(self, with_held: bool) -> dict[str, object]:
        """Returns the counts of the job, with or without the mini-batch that is held."""
        batches = [batch for batch in self.batches() if with_held or "held" not in batch]
        ended = [all(kind == "bad" for kind in batch) for batch in batches]
        bad = sum(batch.count("bad") for batch in batches)
        items = sum(map(len, batches))
        partial = sum(0 < batch.count("bad") < len(batch) for batch in batches)
        total = len(self.batches())
        return {
            "mini_batches": {"total": total, "succeeded": ended.count(False), "failed": ended.count(True)},
            "items": {"succeeded": items - bad, "failed": bad},
            "retrying": 0,
            "partial": partial,
            "pending": total - len(batches),
        }

    def held(self) -> int:
        return next(number for number, batch in enumerate(self.batches()) if "held" in batch)


NOTHING = {"mini_batches": {}, "items": {"succeeded": 0, "failed": 0}, "retrying": 0}


def counted(document: dict) -> dict[str, object]:
    """Returns the counts in a progress, a result or a job of the portal."""
    items = {key: document["items"][key] for key in ("succeeded", "failed")}
    return {"mini_batches": document["mini_batches"], "items": items, "retrying": document["retrying"]}


class Views:
    """Everything that tells of one job."""

    def __init__(self, workplace: Workplace, job_id: str, flags: tuple[str, ...] = ()) -> None:
        self.workplace, self.job_id, self.flags = workplace, job_id, flags
        self.portal = Portal(workplace, *flags)

    def text(self, *command: str) -> str:
        return self.workplace.command(*command, *self.flags).stdout

    def status(self) -> dict:
        return json.loads(self.text("status", self.job_id, "--json"))

    def all(self) -> dict[str, dict[str, object]]:
        """Returns the counts of each view, by its name."""
        status = self.status()
        [row] = [row for row in json.loads(self.text("jobs", "--json")) if row["job_id"] == self.job_id]
        job = self.portal.get(f"/jobs/{self.job_id}")
        cells = Counter(base64.b64decode("".join(c["bytes"] for c in self.of("map")["chunks"])))
        matching = {
            state: self.of(f"mini-batches?state={state}")["matching"]
            for state in ("succeeded", "failed", "retrying", "partial", "pending", "running")
        }
        gauges = {gauge["key"]: gauge["value"] for gauge in job["gauges"]}
        return {
            # A reducer writes the first progress two seconds after it has opened the job.
            "status": counted(status["result"] or status["progress"] or NOTHING),
            "jobs": {key: value for key, value in counted({**row, "retrying": 0}).items() if key != "retrying"},
            "portal": counted(job),
            "map": {
                "mini_batches": {
                    "total": self.of("map")["total"],
                    "succeeded": cells[1] + cells[4],
                    "failed": cells[2],
                },
                "retrying": cells[3],
                "partial": cells[4],
                "pending": cells[0],
            },
            "table": {
                "mini_batches": {
                    "total": sum(matching[state] for state in matching if state != "partial"),
                    "succeeded": matching["succeeded"],
                    "failed": matching["failed"],
                },
                "retrying": matching["retrying"],
                "partial": matching["partial"],
                "pending": matching["pending"] + matching["running"],
            },
            "gauges": {"items": {**counted(job)["items"], "failed": gauges["error_threshold"]}},
        }

    def of(self, answer: str) -> dict:
        return self.portal.get(f"/jobs/{self.job_id}/{answer}")

    def wait_for(self, expected: dict[str, object]) -> None:
        """Waits until all views tell this."""

        def contradictions() -> list[str]:
            return [
                f"{name}: {key} is {value}, and should be {expected[key]}"
                for name, told in self.all().items()
                for key, value in told.items()
                if value != expected[key]
            ]

        found: list[str] = []

        def agree() -> bool:
            found[:] = contradictions()
            return not found

        try:
            wait_until(agree, "views that agree", 30)
        except AssertionError:
            raise AssertionError("\n".join(found)) from None


def check_sentences(views: Views, expected: dict) -> None:
    counts = expected["mini_batches"]
    text = views.text("status", views.job_id)
    succeeded = f"{counts['succeeded']} of {counts['total']}"
    assert f"mini-batches: {succeeded} succeeded, {counts['failed']} failed" in text, text
    sentence = views.portal.get(f"/jobs/{views.job_id}")["sentence"]
    assert f"{succeeded} mini-batch" in sentence, sentence
    assert (f", {counts['failed']} failed" in sentence) == (counts["failed"] > 0), sentence


def check_running(views: Views, held: int | None) -> None:
    """Waits until all views tell this of the mini-batch that runs; `None`: none does."""
    expected = [] if held is None else [held]

    def told() -> list[list[int]]:
        processes = [process["running"] for node in views.of("nodes")["nodes"] for process in node["processes"]]
        bars = views.of("timeline")["bars"]
        return [
            [one["mini_batch"] for one in views.status()["progress"]["running"]],
            [row["mini_batch"] for row in views.of("mini-batches?state=running")["rows"]],
            [one["mini_batch"] for one in processes if one],
            [number for number, status in zip(bars["mini_batch"], bars["status"], strict=True) if status == RUNNING],
        ]

    wait_until(lambda: told() == 4 * [expected], f"{expected} as what runs, instead of {told()}", 30)


def check_end(views: Views, plan: Plan, logs: str) -> None:
    expected = plan.expected(with_held=True)
    views.wait_for(expected)
    counts, items = expected["mini_batches"], expected["items"]
    assert (
        f"Mini-batches: {counts['total']} in all, {counts['succeeded']} succeeded, {counts['failed']} failed." in logs
    )
    assert f"{items['succeeded']} succeeded, {items['failed']} failed." in logs, logs
    rejects = views.of("rejects")
    assert rejects["items"] == items["failed"], rejects
    bad = [number for number, batch in enumerate(plan.batches()) if 0 < batch.count("bad") < len(batch)]
    for number in bad[:3]:
        rejected = views.of(f"mini-batches/{number}")["rejected"]
        assert rejected["items"] == plan.batches()[number].count("bad"), rejected
        assert all("is bad" in one["error"]["message"] for one in rejected["shown"]), rejected


def write(workplace: Workplace, plan: Plan, **settings: object):
    workplace.data(len(plan.kinds))
    workplace.write({"code/kinds.json": json.dumps(plan.kinds)})
    shape = {"mini_batch_size": plan.size, "run_max_try": 2, "process_count_per_node": 2}
    return workplace.job(SCRIPT, run_invocation_timeout=600, speculation=False, **shape, **settings)


@pytest.mark.parametrize("seed", range(JOBS))
def test_every_view_of_a_job_tells_the_same(workplace: Workplace, sqlite, seed: int) -> None:
    plan = Plan(seed)
    job, held = write(workplace, plan), plan.expected(with_held=False)
    if seed % 3 == 2:
        reducers = [sqlite.reducer(), sqlite.reducer()]
        job_id = sqlite.enqueue(job)
        worker = sqlite.worker("--process-count", 2)
        worker.wait_for_record("held")
        views = Views(workplace, job_id, ("--target", sqlite.name))
        views.wait_for(held)
        check_running(views, plan.held())
        check_sentences(views, held)
        reducers[0].kill()
        views.wait_for(held)
        go(workplace)
        sqlite.wait_for_end(job_id)
        logs = sqlite.command("logs", job_id, "job_result.txt", expect=0).stdout
    else:
        running = job.start()
        [fact] = running.wait_for_record("held")
        [job_id] = workplace.job_ids()
        views = Views(workplace, job_id)
        views.wait_for(held)
        check_running(views, plan.held())
        check_sentences(views, held)
        if seed % 3 == 1:
            running.kill(fact["pid"])
            views.wait_for(held)
            check_running(views, None)
            go(workplace)
            ended = job.retry(job_id)
        else:
            go(workplace)
            ended = running.wait()
        assert ended.exit_status == COMPLETED, str(ended)
        expected = plan.expected(with_held=True)
        assert counted(ended.result) == {key: expected[key] for key in ("mini_batches", "items", "retrying")}
        logs = (workplace.home / "jobs" / job_id / "logs" / "job_result.txt").read_text()
    check_end(views, plan, logs)
