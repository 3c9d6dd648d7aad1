"""Everything that tells of one job, as counts and sentences that can be compared."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from harness import Workplace, wait_until
from portal_client import Portal
from scrape import Role, Scrape

NOTHING: dict[str, Any] = {"mini_batches": {}, "items": {"succeeded": 0, "failed": 0}, "retrying": 0}
"""The counts of a job before its first progress."""
NUMBER = r"(\d[\d,]*)"
COUNTS = re.compile(
    rf"{NUMBER}(?: of {NUMBER})?(?: mini-batch(?:es)?)? succeeded(?:, {NUMBER} failed)?"
    rf"(?:, {NUMBER} (?:to be tried again|failed a try and had tries left))?"
)
"""`14 of 15 mini-batches succeeded, 1 failed, 2 to be tried again`"""
AGO = re.compile(r" \([^()]* ago\)")
"""The part of a sentence that changes with the time."""
SAYS_ITSELF = """
import gristmill, json, sys
job = gristmill.attach(*json.loads(sys.argv[1]))
print(json.dumps([repr(job), job._repr_html_()]))
"""

Counts = dict[str, Any]


def counted(document: dict[str, Any]) -> Counts:
    """Returns the counts in a progress, a result or a job of the portal."""
    items = {key: document["items"][key] for key in ("succeeded", "failed")}
    return {"mini_batches": document["mini_batches"], "items": items, "retrying": document["retrying"]}


def counts_in(text: str) -> Counts:
    """Returns the counts of mini-batches in a sentence; none if it has none."""
    match = COUNTS.search(text)
    if match is None:
        return {}
    succeeded, total, failed, retrying = (int(number.replace(",", "")) if number else 0 for number in match.groups())
    return {"mini_batches": {"total": total, "succeeded": succeeded, "failed": failed}, "retrying": retrying}


def items_in(text: str) -> Counts:
    """Returns the counts of items in a text, without their total."""
    found = counts_in(text).get("mini_batches", {})
    return {"items": {key: found[key] for key in ("succeeded", "failed")}} if found else {}


def line_of(text: str, name: str) -> str:
    """Returns the rest of the line that begins with this name."""
    match = re.search(rf"^ +{name}: (.*)$", text, re.M)
    return match[1] if match else ""


def of_text(text: str) -> Counts:
    """Returns the counts in what `status` prints, or `run` at its end."""
    return {**counts_in(line_of(text, "mini-batches")), **items_in(line_of(text, "items"))}


def rows_of_card(card: str) -> dict[str, str]:
    """Returns the table of a card for notebooks."""
    rows = re.findall(r"<tr><th[^>]*>(.*?)</th><td[^>]*>(.*?)</td></tr>", card)
    return {html.unescape(name): html.unescape(re.sub(r"<[^>]*>", "", value)) for name, value in rows}


class Views:
    """Everything that tells of one job of this machine, or of a target with these reducers."""

    def __init__(self, workplace: Workplace, job_id: str, target: str | None = None) -> None:
        self.workplace, self.job_id, self.target = workplace, job_id, target
        self.flags = () if target is None else ("--target", target)
        self.portal = Portal(workplace, *self.flags)
        self.reducers: list[Role] = []
        self.ended_reducers: list[Scrape] = []

    def kill(self, reducer: Role) -> None:
        """Kills a reducer. What it has counted stays a part of the whole."""
        self.ended_reducers.append(reducer.scrape())
        self.reducers.remove(reducer)
        reducer.running.kill()

    def text(self, *command: str) -> str:
        ended = self.workplace.command(*command, *self.flags)
        assert ended.exit_status == 0, str(ended)
        return ended.stdout

    def status(self) -> dict[str, Any]:
        return json.loads(self.text("status", self.job_id, "--json"))

    def row(self) -> dict[str, Any]:
        """Returns the job in `jobs --json`."""
        [row] = [row for row in json.loads(self.text("jobs", "--json")) if row["job_id"] == self.job_id]
        return row

    def of(self, answer: str = "") -> dict[str, Any]:
        """Returns an answer of the portal about the job."""
        return self.portal.get(f"/jobs/{self.job_id}" + (f"/{answer}" if answer else ""))

    def row_of_portal(self) -> dict[str, Any]:
        [row] = [row for row in self.portal.get("/jobs")["jobs"] if row["job_id"] == self.job_id]
        return row

    def python(self) -> tuple[str, dict[str, str]]:
        """Returns what Python prints of the job, and the rows of its card."""
        ended = subprocess.run(
            [sys.executable, "-c", SAYS_ITSELF, json.dumps([self.job_id, self.target])],
            cwd=self.workplace.folder,
            env={**self.workplace.environment, "PYTHONPATH": str(self.workplace.executable.parent / "python")},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 0, ended.stderr
        said, card = json.loads(ended.stdout)
        return said, rows_of_card(card)

    def log(self, path: str) -> str:
        return self.text("logs", self.job_id, path)

    def logs(self, pattern: str) -> list[str]:
        """Returns the names of the logs that match."""
        names = [line.split(maxsplit=1)[-1] for line in self.text("logs", self.job_id).splitlines() if line.strip()]
        return sorted(name for name in names if re.fullmatch(pattern, name))

    def table_of_log(self, path: str) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.log(path))))

    # ---- numbers ---------------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, Counts]:
        """Returns the counts of each view, by its name."""
        return {**self._of_commands(), **self._of_portal(), **self._of_python(), **self._of_metrics()}

    def _of_commands(self) -> dict[str, Counts]:
        status = self.status()
        return {
            # A reducer writes the first progress two seconds after it has opened the job.
            "status --json": counted(status["result"] or status["progress"] or NOTHING),
            "status": of_text(self.text("status", self.job_id)),
            "jobs --json": _without_retrying(self.row()),
            "jobs": _of_line(self.text("jobs"), self.job_id),
        }

    def _of_portal(self) -> dict[str, Counts]:
        job, map_ = self.of(), self.of("map")
        cells = Counter(base64.b64decode("".join(chunk["bytes"] for chunk in map_["chunks"])))
        matching = {
            state: self.of(f"mini-batches?state={state}")["matching"]
            for state in ("succeeded", "failed", "retrying", "partial", "pending", "running")
        }
        gauges = {gauge["key"]: gauge["value"] for gauge in job["gauges"]}
        return {
            "job of the portal": counted(job),
            "its sentence": counts_in(job["sentence"]) if job["result"] is None else {},
            "jobs of the portal": _without_retrying(self.row_of_portal()),
            "map": {
                "mini_batches": {"total": map_["total"], "succeeded": cells[1] + cells[4], "failed": cells[2]},
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

    def _of_python(self) -> dict[str, Counts]:
        said, card = self.python()
        return {
            "Python": counts_in(said) and {"mini_batches": counts_in(said)["mini_batches"]},
            "card": {
                **({"mini_batches": counts_in(card["mini-batches"])["mini_batches"]} if "mini-batches" in card else {}),
                **items_in(card.get("items", "")),
            },
        }

    def _of_metrics(self) -> dict[str, Counts]:
        """Returns what the reducers have counted together, with what each of them says is left."""
        scrapes = [reducer.scrape() for reducer in self.reducers]
        ended = {
            outcome: sum(
                scrape.value("gristmill_mini_batches_total", outcome=outcome)
                for scrape in [*scrapes, *self.ended_reducers]
            )
            for outcome in ("succeeded", "failed")
        }
        left = [scrape.value("gristmill_mini_batches_unfinished") for scrape in scrapes]
        return {
            f"metrics of reducer {number}": {"mini_batches": {"total": sum(ended.values()) + unfinished, **ended}}
            for number, unfinished in enumerate(left)
        }

    def wait_for(self, expected: Counts) -> None:
        """Waits until all views tell these counts."""

        def contradictions() -> list[str]:
            wrong: list[str] = []
            # The portal first, because it starts no process.
            for part in (self._of_portal, self._of_commands, self._of_python, self._of_metrics):
                wrong = wrong or [
                    f"{name}: {key} is {value}, and should be {expected[key]}"
                    for name, told in part().items()
                    for key, value in told.items()
                    if value != expected[key]
                ]
            return wrong

        wait_for_none(contradictions)

    # ---- sentences -------------------------------------------------------------------------------------------------

    def conditions(self) -> dict[str, tuple[str, str | None]]:
        """Returns the state in each view, and what the job waits for; `None`: this view does not tell it."""
        status, row, listed, job = self.status(), self.row(), self.row_of_portal(), self.of()
        heading = self.text("status", self.job_id).partition("\n")[0]
        said, card = self.python()
        state = status["state"]
        hint = status["hint"] or ""
        # An ended job: `job ID failed in 3 s`.
        heading_of = re.fullmatch(r"job \S+ (is )?(\w+)(?:: )?(.*)", heading)
        assert heading_of, heading
        told = {
            "status --json": (state, hint),
            "status": (heading_of[2].capitalize(), heading_of[3] if heading_of[1] else hint),
            "jobs --json": (row["state"], row.get("waits_for", "") or "" if "waits_for" in row else None),
            "job of the portal": (job["state"], job["hint"] or ""),
            "jobs of the portal": (listed["state"], listed["waits_for"] or "" if "waits_for" in listed else None),
            "card": (card["state"], card.get("waits for", "")),
        }
        # What is a part of a longer text.
        for name, text, has_end in (("sentence of the portal", job["sentence"], "."), ("Python", said, ">")):
            words = AGO.sub("", text)
            is_told = not hint or words.endswith(f"{AGO.sub('', hint)}{has_end}")
            first = re.search(rf"(?:^|: ){re.escape(state)}\b", words)
            told[name] = (state if first else words, hint if is_told else words)
        [line] = [line for line in self.text("jobs").splitlines() if line.startswith(self.job_id)]
        waits_for = row.get("waits_for")
        is_told = not waits_for or AGO.sub("", line).endswith(f"  {AGO.sub('', waits_for)}")
        told["jobs"] = (line.split()[1], waits_for if is_told else line)
        return {name: (state, said and AGO.sub("", said)) for name, (state, said) in told.items()}

    def wait_for_condition(self, state: str, lack: str = "") -> None:
        """Waits until all views say that the job is in this state, and that it lacks this."""

        def contradictions() -> list[str]:
            # The others start processes.
            if (told := self.of()["state"]) != state:
                return [f"job of the portal: it is {told}, and should be {state}"]
            conditions = self.conditions()
            hint = conditions["status --json"][1] or ""
            wrong = [
                f"{name}: it is {told}, and should be {state}"
                for name, (told, _) in conditions.items()
                if told != state
            ]
            if not hint.startswith(lack) or bool(hint) != bool(lack):
                wrong.append(f"status --json: {hint!r} should begin with {lack!r}")
            # Lists do not say what to do about it.
            return wrong + [
                f"{name}: {said!r} instead of {hint!r}"
                for name, (_, said) in conditions.items()
                if said is not None and not (said == hint or (name.startswith("jobs") and said and said in hint))
            ]

        wait_for_none(contradictions)

    def running(self) -> list[list[int]]:
        """Returns the mini-batches that run, in each view."""
        status, job = self.status(), self.of()
        processes = [process["running"] for node in self.of("nodes")["nodes"] for process in node["processes"]]
        bars = self.of("timeline")["bars"]
        return [
            [one["mini_batch"] for one in (status["progress"] or {"running": []})["running"]],
            [one["mini_batch"] for one in (job["progress"] or {"running": []})["running"]],
            [row["mini_batch"] for row in self.of("mini-batches?state=running")["rows"]],
            [one["mini_batch"] for one in processes if one],
            [number for number, status in zip(bars["mini_batch"], bars["status"], strict=True) if status == RUNNING],
        ]


RUNNING = 5
"""The status of a bar of the timeline."""


def wait_for_none(contradictions: Callable[[], list[str]], seconds: float = 30) -> None:
    """Waits until there are no contradictions."""
    found: list[str] = []

    def agree() -> bool:
        found[:] = contradictions()
        return not found

    try:
        wait_until(agree, "views that agree", seconds)
    except AssertionError as error:
        raise AssertionError("\n".join(found) or str(error)) from None


def _without_retrying(row: dict[str, Any]) -> Counts:
    return {key: value for key, value in counted({**row, "retrying": 0}).items() if key != "retrying"}


def _of_line(jobs: str, job_id: str) -> Counts:
    """Returns the counts in the line of a job that `jobs` prints: mini-batches that succeeded, all, and items."""
    [line] = [line for line in jobs.splitlines() if line.startswith(job_id)]
    found = re.search(r" (\d+)/(\d+) +(\d+)(?:/\d+)?(?: |$)", line)
    assert found, line
    succeeded, total, items = map(int, found.groups())
    return {"listed": (succeeded, total, items)}
