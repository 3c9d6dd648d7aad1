"""Opens every page of the portal in a browser, and measures how long each takes and what the browser needs."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

# Each page with something that is there once it is complete.
PAGES = [
    ("jobs", "", "table.jobs a.name"),
    ("job", "jobs/{job}", ".sentence"),
    ("mini-batches", "jobs/{job}/mini-batches", ".batches tbody tr"),
    ("mini-batches by tries", "jobs/{job}/mini-batches?by=tries", ".scale"),
    ("mini-batches by duration", "jobs/{job}/mini-batches?by=duration", ".scale"),
    ("mini-batches, slowest first", "jobs/{job}/mini-batches?sort=duration", "th[aria-sort=descending]"),
    ("mini-batches, failed", "jobs/{job}/mini-batches?state=failed", ".batches tbody tr"),
    ("one mini-batch", "jobs/{job}/mini-batches/{middle}", ".phases"),
    ("timeline", "jobs/{job}/timeline", ".gantt canvas"),
    ("nodes", "jobs/{job}/nodes", "main table"),
    ("logs", "jobs/{job}/logs", "main .panel"),
    ("a log", "jobs/{job}/logs?path=user/stdout/node-0/process000.stdout.txt", ".log-line"),
    ("output", "jobs/{job}/output", "main .panel table"),
]
REST = ("#/target", "main h1:has-text('this machine')")
WAIT_MS = 30_000
BROWSER = "browser, all processes"
EMPTY = "browser, before the first page"


def processes_of(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for child in Path(f"/proc/{pid}/task").glob("*/children"):
        for each in child.read_text().split():
            found += processes_of(int(each))
    return found


def browser_megabytes() -> float:
    """The memory of the browser's processes; what they share counts once."""
    total = 0
    for pid in processes_of(os.getpid()):
        try:
            if "chrom" not in Path(f"/proc/{pid}/comm").read_text():
                continue
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024


def pages_of(job_id: str, mini_batches: int) -> list[tuple[str, str, str]]:
    """The pages of a job, and the list."""
    return [(name, place.format(job=job_id, middle=mini_batches // 2), complete) for name, place, complete in PAGES]


def browse(
    address: str, pages: list[tuple[str, str, str]], rest: tuple[str, str] = REST
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the time of each page until it is complete, and the most memory of the browser without garbage. Before
    each page, the browser shows the page `rest`: its place, and something that only it has.
    """
    times: dict[str, float] = {}
    most = {EMPTY: 0.0, BROWSER: 0.0, "browser, objects of the page": 0.0}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        most[EMPTY] = browser_megabytes()
        page.goto(address)
        page.locator("table.jobs a.name").first.wait_for(timeout=WAIT_MS)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        for name, place, complete in pages:
            # Elements of the previous page must not count as those of this one.
            page.evaluate("hash => { location.hash = hash; }", rest[0])
            page.locator(rest[1]).first.wait_for(timeout=WAIT_MS)
            began = time.perf_counter()
            page.evaluate("hash => { location.hash = hash; }", f"#/{place}")
            page.locator(complete).first.wait_for(timeout=WAIT_MS)
            if "mini-batches" in name and "one" not in name:
                drawn = "(document.querySelector('.map canvas')?.width ?? 0) > 300"
                while not page.evaluate(drawn):
                    time.sleep(0.005)
            times[name] = time.perf_counter() - began
            # A browser with memory to spare keeps garbage for long.
            session.send("HeapProfiler.collectGarbage")
            metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
            now = {
                BROWSER: browser_megabytes(),
                "browser, objects of the page": metrics["JSHeapUsedSize"] / 1e6,
            }
            most |= {key: max(most[key], now[key]) for key in now}
        browser.close()
    return times, most
