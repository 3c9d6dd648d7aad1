"""Pages of benchmarks keep a section that only some runs write."""

import sys

from harness import ROOT

sys.path.insert(0, str(ROOT / "tests/bench"))
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
