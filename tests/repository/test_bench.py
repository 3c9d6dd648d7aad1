"""The benchmark runs, its pages show its results, and the guard of instructions names a change."""

import json
import os
import re
import subprocess
import sys

import pytest

from harness import ROOT

sys.path.insert(0, str(ROOT / "tests/bench"))
import guard
from bench import document
from report import compared_row, write_pages

BENCH = ROOT / "tests/bench"
RESULTS = json.loads((BENCH / "results.json").read_text())


def test_small_workloads_run_and_print_the_figures_of_each_side(tmp_path):
    before = (BENCH / "results.json").read_bytes()
    workloads = ["noop", "plan", "bad"]
    options = ["--scale", "0.0005", "--rounds", "1", "--peers", "pool", "--data", str(tmp_path)]
    ended = subprocess.run(
        [os.environ["GRISTMILL_PYTHON"], str(BENCH / "bench.py"), *workloads, *options],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    printed = re.sub(r"[\d.]+ (s|MiB)", r"0 \1", ended.stdout)
    measured = "seconds 0 s, cpu_seconds 0 s, peak_mib 0 MiB"
    assert printed.count(f"  gristmill: {measured}") == 2 + 3, ended.stdout
    assert len(re.findall(rf"  Pool: ratio [\d.]+, {measured}", printed)) == 2, ended.stdout
    assert printed.count("rows 999, named 1,") == 2, "every good row is kept:\n" + ended.stdout
    assert (BENCH / "results.json").read_bytes() == before, "other sizes are not recorded"


def test_pages_show_the_results(tmp_path):
    write_pages(RESULTS, tmp_path)
    for page in tmp_path.iterdir():
        assert page.read_text() == (BENCH / page.name).read_text(), f"scripts/bench report has not written {page.name}"
    assert document(RESULTS) == (BENCH / "results.json").read_text()


def test_ratio_of_a_faster_peer_is_shown_like_any_other():
    sides = {
        "gristmill": {"seconds": [2.0, 9.0, 1.0]},
        "ray": {"seconds": [5.0]},
        "cat": {"seconds": [1.0]},
        "pool": {},
    }
    entry = {"title": "work", "amount": 100, "unit": "files", "sides": sides}
    assert compared_row(entry) == ["work", "**2 s** (50 files/s)", "`cat` 1 s (**0.50**)<br>Ray 5 s (**2.50**)"]


@pytest.mark.parametrize(
    ("counted", "changes"),
    [
        ({"engine": 1079.0, "processes": 161.0}, []),
        ({"engine": 1081.0, "processes": 200.0}, ["engine: 1081.0 million instructions instead of 1000.0, +8.1%"]),
        ({"engine": 1000.0, "processes": 159.0}, ["processes: 159.0 million instructions instead of 200.0, -20.5%"]),
        ({"engine": 1000.0, "others": 1.0}, ["others: 1.0 million instructions, and none recorded"]),
    ],
)
def test_guard_names_every_count_that_has_changed(counted, changes):
    recorded = {"engine": 1000.0, "processes": 200.0}
    assert guard.changed("csv", recorded, counted) == [f"csv, {change}" for change in changes]
