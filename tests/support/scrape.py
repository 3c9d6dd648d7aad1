"""Workers and reducers with HTTP endpoints, and what `/metrics` of a role says."""

from __future__ import annotations

import re
import signal
import sqlite3
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

from harness import wait_until
from targets import Target


class Scrape:
    """The content of `/metrics`, parsed as OpenMetrics text."""

    def __init__(self, text: str) -> None:
        assert text.endswith("# EOF\n"), text
        self.series: dict[str, list[tuple[dict[str, str], float]]] = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, labels, value = re.fullmatch(r"([a-z_]+)(?:\{(.*)\})? (\S+)", line).groups()
                pairs = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or ""))
                self.series.setdefault(name, []).append((pairs, float(value)))

    def values(self, name: str, **labels: str) -> list[float]:
        """Returns the series with these labels."""
        return [value for pairs, value in self.series.get(name, []) if labels.items() <= pairs.items()]

    def value(self, name: str, **labels: str) -> float:
        """Returns the sum of the series with these labels."""
        found = self.values(name, **labels)
        assert found, f"there is no {name} with {labels}: {self.series.get(name)}"
        return sum(found)


class Role:
    """A worker or a reducer of a target with HTTP endpoints at a free port."""

    def __init__(self, target: Target, name: str, *arguments: object, **environment: str) -> None:
        self.target = target
        self.running = target.role(name, "--listen", "127.0.0.1:0", *arguments, **environment)
        lines = iter(self.running.process.stdout.readline, b"")
        self.url = next(line for line in lines if b"http://" in line).decode().split()[-1]

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stop(self) -> None:
        """Stops every thread."""
        self.running.send(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.running.process.pid}/task")
        wait_until(lambda: all(is_stopped(task) for task in tasks.iterdir()), "every thread to stop")

    def pause(self) -> None:
        """Stops it while it holds no lock of a SQLite queue, which would block the other roles."""

        def is_paused() -> bool:
            self.stop()
            if all(is_free(queue) for queue in (self.target.folder / "queues").glob("*.db")):
                return True
            self.running.send(signal.SIGCONT)
            return False

        wait_until(is_paused, "a moment without a lock")

    def health(self) -> int:
        return self.target.workplace.command("health", "--listen", self.url.removeprefix("http://")).exit_status

    def scrape(self) -> Scrape:
        status, text = self.get("/metrics")
        assert status == 200, text
        return Scrape(text)


def is_stopped(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(") ")[2].startswith("T")
    except (FileNotFoundError, ProcessLookupError):
        return True


def is_free(queue: Path) -> bool:
    with closing(sqlite3.connect(queue, timeout=0, isolation_level=None)) as database:
        try:
            database.execute("begin immediate")
        except sqlite3.OperationalError:
            return False
        database.execute("rollback")
        return True
