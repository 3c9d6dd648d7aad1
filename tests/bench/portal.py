"""Measures the portal on a synthetic job of a million mini-batches: the time of every answer and every page, and the
memory of the portal and of a browser; and how fast jobs run while the portal shows them.
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
from pathlib import Path

from portal_pages import browse
from portal_watched import compare

ROUNDS = 5
LOOKS_EVERY_SECONDS = 0.45
"""The portal answers from memory until it looks at the job again."""


def measure(
    executable: str, synthetic: str, mini_batches: int, failures: int
) -> tuple[dict[str, list[float]], dict[str, int], dict[str, float], dict[str, float]]:
    """Returns the times of every answer, their sizes, the times of every page, and the memory of each process in MB."""
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
                    ("output", f"{job}/output"),
                ]:
                    get(name, path)
            pages, memory = browse(printed, job_id, mini_batches)
            status = Path(f"/proc/{portal.pid}/status").read_text()
            peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
            return times, sizes, pages, {"portal": int(peak.split()[1]) / 1024, **memory}
        finally:
            portal.terminate()
            portal.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mini-batches", type=int, default=1_000_000)
    parser.add_argument("--failures", type=int, default=1_000)
    parser.add_argument("--synthetic", required=True, help="the program that writes the job")
    parser.add_argument("--watched-mini-batches", type=int, default=200_000, help="size of the jobs that run")
    parser.add_argument("--watched-only", action="store_true", help="only compare jobs with and without a portal")
    arguments = parser.parse_args()
    if not arguments.watched_only:
        show(arguments)
    print("\n" + compare(os.environ["GRISTMILL"], sys.executable, arguments.watched_mini_batches))


def show(arguments: argparse.Namespace) -> None:
    times, sizes, pages, memory = measure(
        os.environ["GRISTMILL"], arguments.synthetic, arguments.mini_batches, arguments.failures
    )
    print(f"A job of {arguments.mini_batches:,} mini-batches, {arguments.failures:,} of them failed.\n")
    print("| answer | median | longest | bytes |\n|---|---|---|---|")
    for name, seconds in times.items():
        print(f"| {name} | {statistics.median(seconds):.3f} s | {max(seconds):.3f} s | {sizes[name]:,} |")
    print("\n| page | complete after |\n|---|---|")
    for name, seconds in pages.items():
        print(f"| {name} | {seconds:.3f} s |")
    print("\n| memory | MB |\n|---|---|")
    for name, megabytes in memory.items():
        print(f"| {name} | {megabytes:.0f} |")


if __name__ == "__main__":
    main()
