"""Jobs with damaged objects in a browser: every page says what it knows, and no page breaks."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from harness import FAILED, Workplace
from page_client import show
from portal_client import FAILS_ON_ONE, Portal

pytestmark = pytest.mark.xdist_group("page")

MOST = str(2**64 - 1)
GARBAGE = b"<img src=x onerror=\"document.title='broken in'\">\x1b[2J\xff"
DAMAGES = {
    "spec.json": lambda _: GARBAGE,
    "result.json": lambda _: GARBAGE,
    "progress.json": lambda text: re.sub(rb"(?<=[:,\[ ])\d+(?=[,\]}])", MOST.encode(), text),
    "ledger": lambda text: text[: len(text) // 2],
}
TABS = ("", "mini-batches", "mini-batches/3", "timeline", "nodes", "logs", "output")
# What the page of the job says; the others say it, too, or show what they know.
SAID = {
    "spec.json": "spec.json",
    "result.json": "result.json",
    "progress.json": "exceeds error threshold 0",
    "ledger": "of the ledger is damaged or incomplete",
}


@pytest.fixture(scope="module")
def jobs(shared_workplace: Workplace) -> tuple[Workplace, str, str]:
    """A job that has failed and one that has completed, with their workplace."""
    shared_workplace.data(6)
    job_id = shared_workplace.job(FAILS_ON_ONE, error_threshold=0).run(expect=FAILED).job_id
    return shared_workplace, job_id, shared_workplace.job("def run(files): return files", name="whole").run().job_id


@pytest.mark.parametrize("name", DAMAGES)
def test_pages_of_a_damaged_job_say_what_they_know(
    jobs: tuple[Workplace, str, str], tmp_path: Path, open_page: Callable[..., Page], name: str
) -> None:
    workplace, job_id, other = jobs
    home = shutil.copytree(workplace.home, tmp_path / "home")
    folder = home / "jobs" / job_id
    file = next(file for file in sorted(folder.rglob("*")) if str(file.relative_to(folder)).startswith(name))
    if file.is_dir():
        file = min(each for each in file.iterdir())
    file.chmod(0o600)
    file.write_bytes(DAMAGES[name](file.read_bytes()))
    page = open_page(Portal(workplace, GRISTMILL_HOME=str(home)).address)
    expect(page.locator("a.name").filter(has_text="whole")).to_be_visible()
    for tab in TABS:
        show(page, f"jobs/{job_id}/{tab}".rstrip("/"))
        shown = page.locator("main")
        complete = page.locator(".title h1, .problem").first
        expect(complete).to_be_visible()
        expect(shown.get_by_text("Loading …")).to_have_count(0)
        assert page.title() != "broken in" and page.locator("#app img").count() == 0
        assert re.search(r"\w{3,} \w{2,}", shown.inner_text()), f"{tab} says nothing"
        if tab == "":
            expect(shown).to_contain_text(SAID[name])
    show(page, f"jobs/{other}")
    expect(page.locator(".sentence")).to_contain_text("Completed in")
