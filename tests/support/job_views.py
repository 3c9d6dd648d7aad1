"""All that shows one job: `status`, `jobs`, the answers of the portal, and every tab of its page in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from playwright.sync_api import Page, Response, expect

from harness import Workplace, wait_until
from page_client import show, violations
from portal_client import Portal
from targets import Target

TABS = {
    "": "Overview",
    "mini-batches": "Mini-batches",
    "timeline": "Timeline",
    "nodes": "Nodes",
    "logs": "Logs",
    "output": "Output",
}
TONES = {
    "Completed": "good",
    "Failed": "bad",
    "Canceled": "idle",
    "Interrupted": "odd",
    "Running": "busy",
    "Queued": "idle",
    "Waiting": "warn",
    "Canceling": "warn",
}
ENDED = ("Completed", "Failed", "Canceled")
# Texts of a program, not for people. A log may hold any text, so it is left out.
BROKEN = re.compile(r"\b(NaN|undefined|null|Infinity|Invalid Date|1970-\d\d)\b|\[object|(?<![\d.])0\.0 ?ms")
VISIBLE = """() => {
    const main = document.querySelector("main");
    const logs = [...main.querySelectorAll(".log, .files")];
    logs.forEach(log => { log.style.display = "none"; });
    const text = main.innerText;
    logs.forEach(log => { log.style.display = ""; });
    return text;
}"""
EMPTY_PANELS = """() => [...document.querySelectorAll("main .panel")].filter(panel => {
    const inner = [...panel.children].filter(child => !["HEADER", "FOOTER"].includes(child.tagName));
    return !inner.some(child => child.innerText.trim() || child.querySelector("canvas, svg"));
}).map(panel => panel.innerText)"""
NAMELESS = """() => [...document.querySelectorAll("main a, main button")]
    .filter(each => !each.innerText.trim() && !each.getAttribute("aria-label") && each.checkVisibility())
    .map(each => each.outerHTML)"""


class Plan(Enum):
    """What is known of the mini-batches of a job."""

    KNOWN = "all"
    UNREAD = "all are planned, and no reducer has counted them"
    PARTIAL = "not all are planned"


@dataclass(frozen=True)
class Expected:
    """What is to be seen of a job. `says`: a part of its sentence; `remedy`: what follows it there. `counts`: the
    mini-batches in all, succeeded and failed. `nodes`: those that its tab names."""

    state: str
    says: str
    counts: tuple[int, int, int] = (0, 0, 0)
    remedy: str = ""
    running: int = 0
    can_cancel: bool = False
    can_retry: bool = False
    plan: Plan = Plan.KNOWN
    nodes: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        return self.state not in ENDED

    @property
    def is_being_planned(self) -> bool:
        return self.plan is Plan.PARTIAL and self.state in ("Queued", "Running", "Waiting")


def without_ages(text: str | None) -> str:
    """Returns a text without how long ago something was, which differs from one answer to the next."""
    return re.sub(r"\([^()]* ago\)|\bfor (\d[\d.]* (?:ms|s|min|h)\s?)+", "…", text or "")


def counts_of(counts: dict[str, int]) -> tuple[int, int, int]:
    return counts["total"], counts["succeeded"], counts["failed"]


class JobViews:
    """Looks at jobs of this machine, or of a target, in all ways at once."""

    def __init__(
        self, workplace: Workplace, open_page: Callable[..., Page], axe: str, target: Target | None = None
    ) -> None:
        self.workplace = workplace
        self.target = target
        self.axe = axe
        self.flags = ("--target", target.name) if target else ()
        self.portal = Portal(workplace, *self.flags)
        self.refused: list[str] = []
        # axe needs more than the policy of the page allows.
        self.page = open_page(self.portal.address, prepare=self._listen, bypass_csp=True)

    def _listen(self, page: Page) -> None:
        def answered(response: Response) -> None:
            if response.status >= 400:
                self.refused.append(f"{response.status} {response.url}")

        page.on("response", answered)

    def command(self, name: str, *arguments: object) -> str:
        ended = self.workplace.command(name, *arguments, *self.flags)
        assert ended.exit_status == 0, str(ended)
        return ended.stdout

    def status(self, job_id: str) -> dict[str, Any]:
        return json.loads(self.command("status", job_id, "--json"))

    def await_state(self, job_id: str, state: str, says: str, seconds: float = 60) -> None:
        """Waits until `status` shows a state for a reason, and the portal, which looks now and then, that state."""

        def is_shown() -> bool:
            status = self.status(job_id)
            is_here = status["state"] == state and says in told(status)
            return is_here and self.portal.get(f"/jobs/{job_id}")["state"] == state

        try:
            wait_until(is_shown, f"{state}: {says}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.command('status', job_id)}") from None

    def check(self, job_id: str, expected: Expected, seconds: float = 60) -> None:
        """Waits until the job is in a state, and compares everything that shows it. All differences are reported."""
        self.await_state(job_id, expected.state, expected.says, seconds)
        problems = self.problems(job_id, expected)
        assert not problems, f"{expected.state} ({expected.says}):\n  " + "\n  ".join(problems)

    def problems(self, job_id: str, expected: Expected) -> list[str]:
        found = [f"answers: {problem}" for problem in self.answers(job_id, expected)]
        for tab, name in TABS.items():
            show(self.page, f"jobs/{job_id}/{tab}".rstrip("/"))
            expect(self.page.locator(".tabs [aria-current]")).to_have_text(re.compile(f"^{name}"))
            expect(self.page.locator("main .empty[role=status]")).to_have_count(0)
            found += [f"{name}: {problem}" for problem in self.on_tab(job_id, tab, expected)]
        show(self.page, "")
        row = self.page.locator("tr.opens").filter(has=self.page.locator(f"a.name[href$='{job_id}']"))
        expect(row.locator(".badge")).to_have_text(expected.state)
        found += [f"the portal refused {address}" for address in self.refused]
        return found

    def answers(self, job_id: str, expected: Expected) -> Iterator[str]:
        """Compares `status`, `jobs` and the answers of the portal."""

        def differ() -> list[str]:
            status, job = self.status(job_id), self.portal.get(f"/jobs/{job_id}")
            [row] = [one for one in json.loads(self.command("jobs", "--json")) if one["job_id"] == job_id]
            [shown] = [one for one in self.portal.get("/jobs")["jobs"] if one["job_id"] == job_id]
            return [*self.differences(expected, status, job, row, shown)]

        # One of them may be older than another by some seconds.
        found = differ()
        for _ in range(3):
            if not found:
                break
            self.page.wait_for_timeout(700)
            found = differ()
        yield from found
        text = self.command("status", job_id)
        if expected.remedy not in text:
            yield f"status does not say {expected.remedy!r}: {text}"
        if f"job {job_id} is {expected.state.lower()}" not in text and f"{expected.state.lower()} in" not in text:
            yield f"status does not say {expected.state}: {text}"
        if expected.says not in text and expected.says not in told(self.status(job_id)):
            yield f"status does not say {expected.says!r}: {text}"
        [line] = [line for line in self.command("jobs").splitlines() if line.startswith(job_id)]
        if line.split()[1] != expected.state:
            yield f"jobs does not say {expected.state}: {line}"

    def differences(self, expected: Expected, status: Any, job: Any, row: Any, shown: Any) -> Iterator[str]:
        for name, one in (("status", status), ("the portal", job), ("jobs", row), ("the portal's list", shown)):
            if one["state"] != expected.state:
                yield f"{name} says {one['state']}"
        sentence = job["sentence"]
        if not sentence.startswith(expected.state) or expected.says not in sentence or expected.remedy not in sentence:
            yield f"its sentence is {sentence!r}"
        if without_ages(status["hint"]) != without_ages(job["hint"]):
            yield f"hints differ: {status['hint']!r}, {job['hint']!r}"
        part = status["result"] or status["progress"] or row
        for name, counts in (
            ("status", part["mini_batches"]),
            ("the portal", job["mini_batches"]),
            ("jobs", row["mini_batches"]),
            ("the portal's list", shown["mini_batches"]),
        ):
            if counts_of(counts) != expected.counts:
                yield f"{name} counts {counts_of(counts)} mini-batches, not {expected.counts}"
        running = len((job["progress"] or {"running": []})["running"]) if expected.is_open else 0
        if running != expected.running:
            yield f"the portal says that {running} mini-batches run, not {expected.running}"
        waits_for = row.get("waits_for")
        if without_ages(waits_for) != without_ages(shown.get("waits_for")):
            yield f"what it waits for differs: {waits_for!r}, {shown.get('waits_for')!r}"
        if expected.is_open and "waits_for" in row and without_ages(waits_for) not in without_ages(status["hint"]):
            yield f"jobs says {waits_for!r}, status {status['hint']!r}"
        if expected.state in ("Queued", "Waiting") and self.target and expected.says not in (waits_for or ""):
            yield f"jobs says {waits_for!r}"
        if (row.get("cause") or None) != shown["cause"]:
            yield f"causes differ: {row.get('cause')!r}, {shown['cause']!r}"
        if (job["can_cancel"], job["can_retry"]) != (expected.can_cancel, expected.can_retry):
            yield f"can_cancel is {job['can_cancel']}, can_retry is {job['can_retry']}"
        offered = {command["what"] for command in job["commands"]} & {"cancel", "retry"}
        allowed = {what for what in ("cancel", "retry") if job[f"can_{what}"]}
        if offered != allowed:
            yield f"it can {sorted(allowed)}, its commands are {sorted(offered)}"
        processes = row.get("processes")
        of_portal = (job["progress"] or {}).get("processes", 0)
        if processes is not None and processes != of_portal:
            yield f"jobs counts {processes} processes, the portal {of_portal}"

    def on_tab(self, job_id: str, tab: str, expected: Expected) -> Iterator[str]:
        """Looks at a tab that is shown."""
        page = self.page
        badge = page.locator(".title .badge")
        expect(badge).to_have_text(expected.state)
        if TONES[expected.state] not in (badge.get_attribute("class") or "").split():
            yield f"the badge is {badge.get_attribute('class')}"
        text = page.evaluate(VISIBLE)
        for line in text.splitlines():
            if BROKEN.search(line):
                yield f"it shows {line.strip()!r}"
        yield from (f"an empty panel: {panel!r}" for panel in self.empty_panels())
        yield from (f"a link without text: {link}" for link in page.evaluate(NAMELESS))
        for empty in page.locator("main .empty").all_inner_texts():
            if not empty.strip():
                yield "an empty explanation"
            elif not expected.is_open and re.search(r"\byet\b|\bappears?\b", empty):
                yield f"the job has ended, and it says {empty!r}"
        yield from (f"alert: {alert}" for alert in page.locator("main [role=alert]").all_inner_texts())
        look = {"": self.on_overview, "mini-batches": self.on_mini_batches, "timeline": self.on_timeline}.get(tab)
        if look is not None:
            yield from look(job_id, text, expected)
        if tab == "nodes":
            said = page.locator("main .empty").all_inner_texts()
            yield from (f"node {node} is missing: {said}" for node in expected.nodes if f"Node {node}" not in text)

    def empty_panels(self) -> list[str]:
        """Returns the texts of panels without any content. A chart is drawn when its width is known."""
        found: list[str] = self.page.evaluate(EMPTY_PANELS)
        for _ in range(20):
            if not found:
                break
            self.page.wait_for_timeout(100)
            found = self.page.evaluate(EMPTY_PANELS)
        return found

    def facts(self) -> dict[str, str]:
        """Returns the numbers of the overview by their names."""
        facts = self.page.locator(".fact")
        pairs = facts.evaluate_all("all => all.map(fact => [...fact.children].map(each => each.innerText))")
        return {name: " ".join(value.split()) for name, value in pairs}

    def on_overview(self, _job_id: str, _text: str, expected: Expected) -> Iterator[str]:
        sentence = self.page.locator(".sentence").inner_text()
        if expected.says not in sentence or not sentence.startswith(expected.state):
            yield f"its sentence is {sentence!r}"
        for button, is_expected in (("Cancel", expected.can_cancel), ("Retry", expected.can_retry)):
            if self.page.locator(".title").get_by_role("button", name=button, exact=True).count() != is_expected:
                yield f"{button} is {'missing' if is_expected else 'offered'}"
        facts = self.facts()
        total, succeeded, failed = expected.counts
        if expected.plan is Plan.KNOWN and facts["Succeeded"] != f"{succeeded} of {total}":
            yield f"it says succeeded: {facts['Succeeded']!r} of a job of {total} mini-batches"
        if expected.is_being_planned != ("planning" in facts["Succeeded"]):
            planned = "is being planned" if expected.is_being_planned else "is not being planned"
            yield f"the job {planned}, and it says {facts['Succeeded']!r}"
        if facts["Failed"] != str(failed):
            yield f"it says failed: {facts['Failed']!r}"
        if facts.get("Running", "0") != str(expected.running):
            yield f"it says running: {facts['Running']!r}"
        if expected.state != "Running" and facts.get("Time left", "unknown") not in ("unknown", "–"):
            yield f"the job does not advance, and it says that the time left is {facts['Time left']!r}"
        if expected.state in ("Queued", "Interrupted") and facts.get("Running for", "–") != "–":
            yield f"no process works on the job, and it says running for {facts['Running for']!r}"
        if facts.get("Took") == "0 s" or " 0 s:" in sentence:
            yield f"it says that the job took no time: {sentence!r}"
        yield from violations(self.page, self.axe)

    def on_mini_batches(self, job_id: str, text: str, expected: Expected) -> Iterator[str]:
        total, succeeded, failed = expected.counts
        table = self.portal.get(f"/jobs/{job_id}/mini-batches")
        if expected.plan is Plan.KNOWN and table["total"] != total:
            yield f"the table has {table['total']} mini-batches, not {total}"
        if expected.plan is Plan.KNOWN and not re.search(rf"Map\s+{total} mini-batch", text):
            yield f"the map has not {total} mini-batches"
        if expected.plan is Plan.UNREAD and "as soon as they are planned" in text:
            yield "all mini-batches are planned, and it says that they appear as soon as they are"
        keys = [" ".join(key.split()) for key in self.page.locator("footer .key").all_inner_texts()]
        legend = [f"succeeded {succeeded}", f"failed {failed}"]
        legend += [f"running {expected.running}"] if expected.is_open else []
        legend += [f"pending {total - succeeded - failed - expected.running}"]
        if keys and not set(legend) <= set(keys):
            yield f"its legend is {keys}, not {legend}"
        states = [row["state"] for row in table["rows"]]
        if total < 100 and states.count("running") != expected.running:
            yield f"the table says {states}"

    def on_timeline(self, job_id: str, text: str, _expected: Expected) -> Iterator[str]:
        timeline = self.portal.get(f"/jobs/{job_id}/timeline")
        if not timeline["processes"] and (window := re.search(r".*Drag to zoom", text)):
            yield f"no attempt is drawn, and it says {window.group()!r}"


def told(status: dict[str, Any]) -> str:
    """Returns all that `status --json` says of how a job stands, in one text."""
    result, progress = status["result"] or {}, status["progress"] or {}
    waits = [waiting.get("detail", "") for waiting in progress.get("waiting", [])]
    planned = "" if result or progress.get("planned", True) else "not all are planned yet"
    said = " ".join([status["hint"] or "", result.get("cause") or "", planned, *waits])
    counts = (result or progress).get("mini_batches")
    return f"{said} {counted(counts)}" if counts else said


def counted(counts: dict[str, int]) -> str:
    """Returns counts in the words of the portal's sentences."""
    total, succeeded, _ = counts_of(counts)
    noun = "mini-batch" if total == 1 else "mini-batches"
    return f"{succeeded} of {total} {noun} succeeded; {succeeded} {noun} succeeded"
