"""The pages of benchmarks, and what the guard of instructions calls a change."""

import sys

import pytest

from harness import ROOT

sys.path.insert(0, str(ROOT / "tests/bench"))
import guard
from report import keeping_section, with_section


def test_page_keeps_the_section_that_another_run_has_written(tmp_path):
    former = tmp_path / "PAGE.md"
    assert keeping_section("# New\n\nfigures\n", "Beside", former) == "# New\n\nfigures\n", "there is none yet"
    former.write_text(with_section("# Old\n\nfigures\n", "Beside", "compared\n\n"))
    assert former.read_text() == "# Old\n\nfigures\n\n## Beside\n\ncompared\n"
    assert keeping_section("# New\n", "Beside", former) == "# New\n\n## Beside\n\ncompared\n"


def test_section_is_replaced():
    page = with_section("# Page\n", "Beside", "first")
    assert with_section(page, "Beside", "second") == "# Page\n\n## Beside\n\nsecond\n"


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
