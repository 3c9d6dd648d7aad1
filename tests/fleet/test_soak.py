"""The soak of scripts/soak, for some seconds: it stays runnable, and it notices what it is there to notice."""

from __future__ import annotations

import csv
import subprocess
import sys

import pytest
from soak import DESCRIPTOR_GROWTH, RSS_GROWTH_MB, grows

from harness import ROOT


def test_short_soak_passes(tmp_path, components, executable):
    folder = tmp_path / "soak"
    command = [sys.executable, ROOT / "tests/soak.py", "--minutes", "0.15", "--seed", "1", "--results", folder]
    environment = {**components.environment, "GRISTMILL": str(executable)}
    ended = subprocess.run([*command, "rabbitmq"], env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    assert "soak passed" in ended.stdout and "--seed 1" in ended.stdout
    with (folder / "samples.csv").open(newline="") as file:
        sampled = {row["role"] for row in csv.DictReader(file)}
    assert sampled == {"worker-0", "worker-1", "worker-2", "reducer-3", "reducer-4"}
    assert (folder / "rabbitmq/faults.log").read_text().count(" s\n") > 2, "faults happened"


@pytest.mark.parametrize(
    ("later_memory", "later_files", "expected"),
    [
        (100 + RSS_GROWTH_MB, 50 + DESCRIPTOR_GROWTH, False),
        (101 + RSS_GROWTH_MB, 50, True),
        (100, 51 + DESCRIPTOR_GROWTH, True),
        (50, 10, False),
    ],
)
def test_growth_fails_a_soak(later_memory, later_files, expected):
    assert grows(100, later_memory, 50, later_files) == expected
