"""Measures the portal on a synthetic job of a million mini-batches: the time of every answer and every page, and the
memory of the portal and of a browser; of a compute target with many jobs; and how fast jobs run while the portal shows
them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from portal_pages import BROWSER, browse, pages_of
from portal_target import TargetLooks, look_at_target, row
from portal_watched import Watched, compare
from report import commit, hardware

PAGE = Path(__file__).parent / "PORTAL.md"
PORTAL = "portal"
ROUNDS = 5
LOG = "user/stdout/node-0/process000.stdout.txt"
LOOKS_EVERY_SECONDS = 0.45
"""The portal answers from memory until it looks at the job again."""


@dataclass
class Looks:
    """What it takes to look at a job."""

    answers: dict[str, list[float]]
    """Seconds of each answer of the API."""
    sizes: dict[str, int]
    """Bytes of each answer."""
    pages: dict[str, float]
    """Seconds until each page is complete."""
    memory: dict[str, float]
    """The most memory of portal and browser, in MB."""


def measure(executable: str, synthetic: str, mini_batches: int, failures: int) -> Looks:
    with tempfile.TemporaryDirectory() as home:
        made = subprocess.run(
            [synthetic, home, str(mini_batches), str(failures)], check=True, capture_output=True, text=True
        )
        job_id = made.stdout.strip()
        job = f"/jobs/{job_id}"
        portal = subprocess.Popen(
            [executable, "portal", "--no-open", "--listen", "127.0.0.1:0"],
            env={**os.environ, "GRISTMILL_HOME": home},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            printed = portal.stdout.readline().strip()
            address = urllib.parse.urlsplit(printed)
            token = urllib.parse.parse_qs(address.query)["token"][0]
            times: dict[str, list[float]] = {}
            sizes: dict[str, int] = {}

            def get(name: str, path: str) -> None:
                url = f"http://{address.netloc}/api/v1{path}"
                request = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"})
                began = time.perf_counter()
                with urllib.request.urlopen(request, timeout=120) as answer:
                    body = answer.read()
                times.setdefault(name, []).append(time.perf_counter() - began)
                sizes[name] = len(body)
                json.loads(body)

            get("first look at the job", job)
            for _ in range(ROUNDS):
                time.sleep(LOOKS_EVERY_SECONDS)
                for name, path in [
                    ("jobs", "/jobs"),
                    ("job", job),
                    ("series", f"{job}/series"),
                    ("map by state", f"{job}/map?by=state"),
                    ("map by tries", f"{job}/map?by=tries"),
                    ("map by duration", f"{job}/map?by=duration"),
                    ("table, in order", f"{job}/mini-batches"),
                    ("table, failed first", f"{job}/mini-batches?sort=state"),
                    ("table, slowest first", f"{job}/mini-batches?sort=duration"),
                    ("table, last page", f"{job}/mini-batches?sort=duration&offset={mini_batches - 100}"),
                    ("table, only failed", f"{job}/mini-batches?state=failed"),
                    ("table, one error", f"{job}/mini-batches?state=failed&error=decode"),
                    ("one mini-batch", f"{job}/mini-batches/{mini_batches // 2}"),
                    ("timeline", f"{job}/timeline"),
                    ("nodes", f"{job}/nodes"),
                    ("logs", f"{job}/logs"),
                    ("end of a log", f"{job}/logs/text?path={LOG}"),
                    ("search in logs", f"{job}/logs/search?q=no%20such%20line"),
                    ("output", f"{job}/output"),
                ]:
                    get(name, path)
            pages, memory = browse(printed, pages_of(job_id, mini_batches))
            status = Path(f"/proc/{portal.pid}/status").read_text()
            peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
            return Looks(times, sizes, pages, {PORTAL: int(peak.split()[1]) / 1024, **memory})
        finally:
            portal.terminate()
            portal.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench portal", description=__doc__.partition("\n")[0])
    parser.add_argument("--mini-batches", type=int, default=1_000_000)
    parser.add_argument("--failures", type=int, default=1_000)
    parser.add_argument("--synthetic", required=True, help="the program that writes the job")
    parser.add_argument("--watched-mini-batches", type=int, default=200_000, help="size of the jobs that run")
    parser.add_argument("--target-jobs", type=int, default=200, help="open jobs of the compute target")
    parser.add_argument("--watched-only", action="store_true", help="only compare jobs with and without a portal")
    parser.add_argument("--keep-results", action="store_true", help=f"print only, leave {PAGE.name} as it is")
    options = parser.parse_args()
    watched = lambda: compare(os.environ["GRISTMILL"], sys.executable, options.watched_mini_batches)  # noqa: E731
    if options.watched_only:
        print(watched().table())
        return
    looks = measure(os.environ["GRISTMILL"], options.synthetic, options.mini_batches, options.failures)
    target = look_at_target(os.environ["GRISTMILL"], sys.executable, options.target_jobs)
    page = report(options.mini_batches, options.failures, looks, target, watched())
    print(page)
    if not options.keep_results:
        PAGE.write_text(page)


def report(mini_batches: int, failures: int, looks: Looks, target: TargetLooks, watched: Watched) -> str:
    answers, pages = {**looks.answers, "target": target.answers}, {**looks.pages, **target.pages}
    slowest_answer = max(answers, key=lambda name: max(answers[name]))
    slowest_page = max(pages, key=pages.__getitem__)
    answer, page = max(answers[slowest_answer]), pages[slowest_page]
    goals = [
        (f"slowest answer ({slowest_answer})", f"{answer:.2f} s", "1 s", answer <= 1),
        (f"slowest page ({slowest_page})", f"{page:.2f} s", "1 s", page <= 1),
        ("memory of the portal", f"{looks.memory[PORTAL]:.0f} MB", "300 MB", looks.memory[PORTAL] <= 300),
        ("memory of the browser", f"{looks.memory[BROWSER]:.0f} MB", "500 MB", looks.memory[BROWSER] <= 500),
        ("a job with a portal watching", f"{watched.percent:+.1f} %", "+2 %", watched.percent <= 2),
    ]
    lines = [
        "# The portal at a million mini-batches",
        "",
        f"Written by `scripts/bench portal`, {date.today().isoformat()}, commit {commit()}: a synthetic job of",
        f"{mini_batches:,} mini-batches, of which {failures:,} failed. {', '.join(hardware().values())}.",
        "",
        "| | measured | at most | |",
        "|---|---:|---:|---|",
        *(
            f"| {what} | {value} | {limit} | {'reached' if is_good else 'MISSED'} |"
            for what, value, limit, is_good in goals
        ),
        "",
        "## Answers",
        "",
        "The first look reads the whole ledger.",
        "",
        "| | median | longest | bytes |",
        "|---|---:|---:|---:|",
        *(
            f"| {name} | {statistics.median(seconds):.3f} s | {max(seconds):.3f} s | {looks.sizes[name]:,} |"
            for name, seconds in looks.answers.items()
        ),
        row(target),
        "",
        "## Pages in Chromium, until they are complete",
        "",
        "| | seconds |",
        "|---|---:|",
        *(f"| {name} | {seconds:.3f} |" for name, seconds in pages.items()),
        "",
        "## Most memory",
        "",
        "That of the browser is measured once it has collected its garbage.",
        "",
        "| | MB |",
        "|---|---:|",
        *(f"| {name} | {megabytes:.0f} |" for name, megabytes in looks.memory.items()),
        "",
        "## A job that a portal watches",
        "",
        watched.table(),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
