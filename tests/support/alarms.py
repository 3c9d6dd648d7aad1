"""Metrics of roles, recorded during a fault, and the Prometheus rules that ring on them.

A test records a few seconds of each state of a fleet. Each counter then goes on at its recorded rate, and each gauge
keeps its value, for as long as rules look back: `promtool test rules` evaluates infra/observability/alerts.yaml on it.
The same Prometheus scrapes a second target, which stays in the first state: it rings no alarm, and hides none.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from harness import ROOT
from scrape import Role, Scrape

RULES = ROOT / "infra/observability/alerts.yaml"
Labels = tuple[tuple[str, str], ...]


@functools.cache
def promtool() -> Path:
    """Returns the `promtool` of the machine, else of Debian's package, unpacked: installed, it would start a server."""
    if found := shutil.which("promtool"):
        return Path(found)
    assert shutil.which("apt-get"), "promtool is missing (on Debian: apt-get install prometheus)"
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gristmill" / "promtool"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "promtool").exists():
            _download(folder)
    return folder / "promtool"


def _download(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        got = subprocess.run(["apt-get", "download", "prometheus"], cwd=name, capture_output=True, text=True)
        assert got.returncode == 0, (
            f"promtool cannot be downloaded; put it on the PATH, or run apt-get update: {got.stderr}"
        )
        [package] = Path(name).glob("*.deb")
        subprocess.run(["dpkg-deb", "--extract", package, name], check=True)
        (Path(name) / "usr/bin/promtool").rename(folder / "promtool")


@dataclass
class Moment:
    """What Prometheus gets from a fleet at one time; a role that does not answer has no scrape."""

    at: float
    scrapes: dict[str, Scrape]

    @classmethod
    def of(cls, roles: dict[str, Role]) -> Moment:
        scrapes = {}
        for name, role in roles.items():
            try:
                scrapes[name] = role.scrape()
            except urllib.error.URLError:
                continue
        return cls(time.time(), scrapes)

    @functools.cached_property
    def series(self) -> dict[tuple[str, Labels], float]:
        """The values that rules read, by metric and labels. `instance`, from Prometheus, names the role."""
        read = RULES.read_text()
        return {
            (metric, (*sorted(labels.items()), ("instance", name))): value
            for name, scrape in self.scrapes.items()
            for metric, found in scrape.series.items()
            if metric in read
            for labels, value in found
        }


@dataclass
class Phase:
    """A state of a fleet: two moments of it, and for how many minutes it lasts."""

    first: Moment
    last: Moment
    minutes: int

    def values(self, key: tuple[str, Labels], begins: int, start: float | None) -> list[float]:
        """Returns a value for each minute. `begins`: the minute of the first; `start`: that of a counter so far."""
        first, last = self.first.series.get(key), self.last.series[key]
        times = range(begins * 60, (begins + self.minutes) * 60, 60)
        if key[0].endswith("_timestamp_seconds"):
            # Either it follows the clock, or it stands still.
            behind = self.last.at - last
            return [at - behind if first != last else begins * 60 - (self.first.at - last) for at in times]
        if not is_counter(key[0]):
            return [last] * self.minutes
        # The same moment twice: the counter stands still.
        rate = (last - (first or 0.0)) / ((self.last.at - self.first.at) or 1.0)
        return [(start or 0.0) + rate * (at - begins * 60) for at in times]


def is_counter(metric: str) -> bool:
    return metric.endswith(("_total", "_count", "_sum", "_bucket"))


def ringing(phases: list[Phase]) -> list[set[str]]:
    """Returns which alerts ring at the end of each phase, for the target of the phases alone."""
    beside = [Phase(phases[0].first, phases[0].last, phase.minutes) for phase in phases]
    samples = {**_samples(phases, "team-a/gristmill"), **_samples(beside, "team-b/gristmill")}
    ends = [sum(phase.minutes for phase in phases[: number + 1]) - 1 for number in range(len(phases))]
    return [_ringing(samples, end, "team-a/gristmill") for end in ends]


def ringing_without_targets() -> set[str]:
    """Returns which alerts ring in a Prometheus that scrapes no role."""
    return _ringing({}, 10)


def _samples(phases: list[Phase], job: str) -> dict[tuple[str, Labels], list[str]]:
    """Returns the values of each series of a target for each minute. `job` is as the chart's PodMonitor sets it."""
    samples: dict[tuple[str, Labels], list[str]] = {}
    begins = 0
    counters: dict[tuple[str, Labels], float] = {}
    for phase in phases:
        for key in {**samples, **phase.last.series}:
            found = samples.setdefault(key, ["_"] * begins)
            if key not in phase.last.series:
                found += ["stale", *["_"] * (phase.minutes - 1)]
                continue
            values = phase.values(key, begins, counters.get(key))
            counters[key] = values[-1]
            found += map(repr, values)
        begins += phase.minutes
    of_target = (("namespace", job.partition("/")[0]), ("job", job))
    return {(metric, (*labels, *of_target)): values for (metric, labels), values in samples.items()}


def rules() -> list[dict[str, Any]]:
    """Returns the rules of Prometheus."""
    return [rule for group in YAML(typ="safe").load(RULES)["groups"] for rule in group["rules"]]


def names() -> list[str]:
    """Returns the names of all alerts."""
    return [rule["alert"] for rule in rules()]


def _ringing(samples: dict[tuple[str, Labels], list[str]], minute: int, job: str = "") -> set[str]:
    """Tells promtool that no alert rings, and reads from its answer which ones do. All must be those of `job`."""
    series = [
        {
            "series": f"{metric}{{{','.join(f'{name}={json.dumps(value)}' for name, value in labels)}}}",
            "values": " ".join(values),
        }
        for (metric, labels), values in samples.items()
    ]
    quiet = [{"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []} for name in names()]
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": quiet}],
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(test, file)
        file.flush()
        told = subprocess.run([promtool(), "test", "rules", file.name], capture_output=True, text=True)
    text = told.stdout + told.stderr
    rings = {name for name in names() if f"alertname: {name}," in text}
    # Another failure would look like silence.
    assert bool(rings) == bool(told.returncode) and (rings or "SUCCESS" in text), text
    assert set(re.findall(r'job="([^"]*)"', text)) == ({job} if rings and job else set()), text
    return rings
