"""How fast jobs run while a portal shows them: the same job in turns, alone and watched."""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import tempfile
import threading
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 5
PAUSE_SECONDS = 1.5
"""The page asks no more often, even if something changes all the time."""
SCRIPT = "def run(rank):\n    return [rank]\n"
PATHS = ("", "/series", "/map?by=state", "/mini-batches?sort=state", "/timeline")


@dataclass
class Watched:
    """How long the same job took, alone and while a portal showed it."""

    mini_batches: int
    requests: int
    """Requests to the portals."""
    seconds: dict[str, list[float]]

    @property
    def percent(self) -> float:
        """How much longer a job takes with a portal watching."""
        alone, watched = (statistics.median(self.seconds[side]) for side in ("alone", "watched"))
        return 100 * (watched / alone - 1)

    def table(self) -> str:
        lines = [
            f"{self.mini_batches:,} mini-batches that do nothing, {ROUNDS} times in turns; {self.requests} requests to "
            "the portal.",
            "",
            "| | median | all |",
            "|---|---:|---|",
            *(
                f"| {side} | {statistics.median(all_):.2f} s | {', '.join(f'{each:.2f}' for each in all_)} |"
                for side, all_ in self.seconds.items()
            ),
            "",
            f"With a portal watching a job takes {self.percent:+.1f} % longer.",
        ]
        return "\n".join(lines)


def compare(executable: str, python: str, mini_batches: int) -> Watched:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "code").mkdir()
        (home / "code/entry.py").write_text(SCRIPT)
        job = {
            "name": "watched",
            "entry_script": "entry.py",
            "source_directory": "code",
            "arguments": ["--rank_mini_batch_count", str(mini_batches)],
            "output_action": "summary_only",
            "error_threshold": -1,
            "allow_reuse": False,
        }
        (home / "job.yaml").write_text(json.dumps(job))
        environment = {**os.environ, "GRISTMILL_HOME": str(home / "home"), "GRISTMILL_PYTHON": python}
        seconds: dict[str, list[float]] = {"alone": [], "watched": []}
        requests = 0
        # The first of each is not counted.
        for number in range(ROUNDS + 1):
            for side in ("alone", "watched") if number % 2 == 0 else ("watched", "alone"):
                watcher = Watcher(executable, environment) if side == "watched" else None
                command = [executable, "run", "job.yaml", "--fresh", "--json"]
                ended = subprocess.run(command, cwd=home, env=environment, check=True, capture_output=True, text=True)
                if watcher:
                    requests += watcher.stop()
                if number > 0:
                    seconds[side].append(json.loads(ended.stdout)["elapsed_seconds"])
    return Watched(mini_batches, requests, seconds)


class Watcher:
    """A portal, and a client that asks as often as a page of the running job does."""

    def __init__(self, executable: str, environment: dict[str, str]) -> None:
        self.portal = subprocess.Popen(
            [executable, "portal", "--no-open", "--listen", "127.0.0.1:0"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        address = urllib.parse.urlsplit(self.portal.stdout.readline().strip())
        self.url = f"http://{address.netloc}/api/v1"
        self.token = urllib.parse.parse_qs(address.query)["token"][0]
        self.requests = 0
        self.is_over = threading.Event()
        self.asking = threading.Thread(target=self.ask)
        self.asking.start()

    def get(self, path: str) -> dict:
        request = urllib.request.Request(self.url + path, headers={"authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            self.requests += 1
            return json.load(answer)

    def ask(self) -> None:
        events = None
        while not self.is_over.wait(PAUSE_SECONDS):
            running = self.get("/jobs?state=running")["jobs"]
            if not running:
                continue
            job = f"/jobs/{running[0]['job_id']}"
            if events is None:
                # The portal sends the job twice a second on this stream.
                request = urllib.request.Request(
                    f"{self.url}/events?job={running[0]['job_id']}", headers={"authorization": f"Bearer {self.token}"}
                )
                events = urllib.request.urlopen(request, timeout=60)
                threading.Thread(target=drain, args=(events,), daemon=True).start()
            for path in PATHS:
                self.get(job + path)

    def stop(self) -> int:
        self.is_over.set()
        self.asking.join()
        self.portal.terminate()
        self.portal.wait()
        return self.requests


def drain(events) -> None:
    try:
        while events.read1():
            pass
    except (OSError, ValueError, http.client.HTTPException):
        pass
