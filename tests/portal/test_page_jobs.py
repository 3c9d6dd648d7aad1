"""The list of jobs: search, filter, pages of it, and jobs that begin while it is shown."""

import copy
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from page_client import FAILED, RUNNING, show
from stand_in import StandIn

pytestmark = pytest.mark.xdist_group("page")


def rows(page: Page) -> Locator:
    return page.locator("table.jobs tbody tr")


def add(server: StandIn, count: int, state: str = "Completed") -> None:
    """Adds jobs that are older than all others."""
    for number in range(count):
        job = copy.copy(server.jobs[FAILED])
        job.id, job.name, job.state = f"old-20200101-0000{99 - number:02}-a{number}", "old", state
        server.jobs[job.id] = job


def test_jobs_are_searched_and_filtered(own_stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(own_stand_in.address)
    expect(rows(page)).to_have_count(len(own_stand_in.jobs))
    page.get_by_role("searchbox").fill("INV*14")
    expect(rows(page)).to_have_count(1)
    expect(rows(page)).to_contain_text(RUNNING.removeprefix("invoices-"))
    page.reload()
    expect(rows(page)).to_have_count(1)
    expect(page.get_by_role("searchbox")).to_have_value("INV*14")
    page.get_by_role("button", name="Failed", exact=True).click()
    expect(page.get_by_text("No job matches.")).to_be_visible()
    page.get_by_role("button", name="Show all jobs").click()
    expect(rows(page)).to_have_count(len(own_stand_in.jobs))
    expect(page.get_by_role("searchbox")).to_have_value("")
    page.get_by_role("button", name="Failed", exact=True).click()
    expect(rows(page)).to_have_count(2)
    assert rows(page).locator(".badge").all_inner_texts() == ["Failed", "Failed"]
    page.get_by_role("button", name="Open", exact=True).click()
    expect(rows(page).locator(".badge")).to_have_text(["Running"])


def test_pages_of_the_list(own_stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    add(own_stand_in, 70)
    page = open_page(own_stand_in.address)
    expect(rows(page)).to_have_count(50)
    expect(page.get_by_text("77 jobs")).to_be_visible()
    page.get_by_role("link", name="Older jobs").click()
    expect(rows(page)).to_have_count(27)
    expect(rows(page).last).to_contain_text("a69")
    expect(page.get_by_role("link", name="Older jobs")).to_have_count(0)
    page.get_by_role("link", name="Newest").click()
    expect(rows(page).first).to_contain_text("invoices")
    page.get_by_role("searchbox").fill("old")
    expect(page.get_by_text("70 jobs")).to_be_visible()
    expect(rows(page)).to_have_count(50)
    page.get_by_role("link", name="Older jobs").click()
    expect(rows(page)).to_have_count(20)
    expect(page.get_by_role("searchbox")).to_have_value("old")


def test_search_that_stopped_early_goes_on(own_stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    add(own_stand_in, 30)
    add(own_stand_in, 1, "Damaged")
    own_stand_in.jobs[f"older-{FAILED}"] = copy.copy(own_stand_in.jobs.pop(FAILED))
    own_stand_in.jobs[f"older-{FAILED}"].id = f"older-{FAILED}"
    own_stand_in.looks_at = 20
    page = open_page(f"{own_stand_in.address}#/?state=failed&name=old")
    expect(page.get_by_text("No job matches so far.")).to_be_visible()
    expect(page.get_by_text("No job matches.", exact=True)).to_have_count(0)
    page.get_by_role("link", name="Look further").click()
    expect(rows(page)).to_have_count(1)
    expect(rows(page)).to_contain_text("older-")
    page.get_by_role("searchbox").fill("old-")
    expect(page.get_by_text("No job matches so far.")).to_be_visible()
    page.get_by_role("link", name="Look further").click()
    expect(page.get_by_text("No older job matches.")).to_be_visible()
    page.get_by_role("link", name="Show the newest").click()
    expect(page.get_by_text("No job matches so far.")).to_be_visible()


def test_job_that_begins_appears_and_its_state_follows(own_stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(own_stand_in.address)
    count = len(own_stand_in.jobs)
    expect(rows(page)).to_have_count(count)
    job = copy.copy(own_stand_in.jobs[RUNNING])
    job.id = "new-20261123-150000-1a2b"
    own_stand_in.jobs = {job.id: job, **own_stand_in.jobs}
    expect(rows(page)).to_have_count(count + 1)
    expect(rows(page).first).to_contain_text("20261123-150000-1a2b")
    job.state = "Canceled"
    expect(rows(page).first.locator(".badge")).to_have_text("Canceled")


def test_search_does_not_change_the_address_of_the_next_page(
    own_stand_in: StandIn, open_page: Callable[..., Page]
) -> None:
    page = open_page(own_stand_in.address, prepare=lambda page: page.clock.install())
    expect(rows(page).first).to_be_visible()
    page.clock.pause_at(page.evaluate("Date.now() + 1000"))
    page.get_by_role("searchbox").fill("text")
    show(page, f"jobs/{FAILED}")
    page.clock.run_for(1000)
    expect(page.locator(".sentence")).to_be_visible()
    page.clock.run_for(1000)
    expect(page).to_have_url(f"{own_stand_in.address}#/jobs/{FAILED}")
