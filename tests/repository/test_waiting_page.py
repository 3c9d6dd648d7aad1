"""The page "Why does my job wait?" has every sentence of the code that says what a job waits for."""

from __future__ import annotations

import re

import pytest

from harness import ROOT
from waiting_page import PAGE, sections

# The types whose texts say so, and their files.
TEXTS = {
    "Lack": "engine/src/standing.rs",
    "WaitsFor": "protocol/src/schedule.rs",
    "Full": "protocol/src/quotas.rs",
    "Unfit": "protocol/src/requirements.rs",
}


def body(source: str, begins: str) -> str:
    """Returns the block that begins there, up to a brace as far to the left."""
    found = re.search(rf"^( *){re.escape(begins)}.*?^\1}}", source, re.MULTILINE | re.DOTALL)
    assert found, begins
    return found[0]


def literals(code: str) -> list[str]:
    """Returns the fixed parts of the texts in code."""
    texts = [re.sub(r"\\\n\s*", "", text) for text in re.findall(r'"((?:[^"\\]|\\.)*)"', code, re.DOTALL)]
    parts = [part.strip(" ;,:()") for text in texts for part in re.split(r"\{[^}]*\}", text)]
    return [part for part in parts if re.search(r"[a-z]{3}", part)]


def in_page(text: str) -> bool:
    plain = [re.sub(r"\s+", " ", part).replace("1 job is", "2 jobs are") for part in (text, PAGE.read_text())]
    return plain[0] in plain[1]


@pytest.mark.parametrize("name", TEXTS)
def test_page_has_every_sentence(name: str) -> None:
    source = (ROOT / "services" / TEXTS[name]).read_text()
    found = literals(body(source, f"impl fmt::Display for {name}"))
    assert found and [text for text in found if not in_page(text)] == []


def test_page_has_the_troubles_of_reducers() -> None:
    """Others are errors of any wording."""
    sources = "".join(path.read_text() for path in (ROOT / "services/reducer/src").glob("*.rs"))
    reasons = re.findall(r'(?:\btell\(&trouble, |let reason = )(?:one_line\(&format!\()?"([^"{]+)', sources)
    assert len(set(reasons)) >= 2
    for reason in reasons:
        assert any(heading.startswith(reason.strip(" :")) for heading in sections()), reason


def test_page_has_every_phase_of_a_process() -> None:
    source = (ROOT / "services/protocol/src/event.rs").read_text()
    words = re.findall(r'Self::\w+ => "([^"]+)"', body(source, "pub fn word(self)"))
    assert len(words) > 5
    assert [word for word in words if f"`{word}`" not in PAGE.read_text()] == []


def test_every_section_says_what_to_do() -> None:
    assert len(sections()) >= 15
    assert [heading for heading, text in sections().items() if "\n- Do: " not in text] == []
