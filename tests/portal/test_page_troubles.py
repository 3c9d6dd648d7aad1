"""The page when something does not answer: outages, sleep, proxies, removed jobs."""

import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from page_client import FAILED, RUNNING, show
from stand_in import StandIn

pytestmark = pytest.mark.xdist_group("page")


def asleep(page: Page) -> None:
    """Replaces the clock of the page with one that the test can move. Until then it runs by itself."""
    page.clock.install()


def test_machine_that_slept_for_an_hour_catches_up(own_stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{own_stand_in.address}#/jobs/{RUNNING}", prepare=asleep)
    expect(page.get_by_text("511 of 840 mini-batches succeeded")).to_be_visible()
    # The stream stays open and sends nothing, like one that broke while the machine slept.
    own_stand_in.is_silent = True
    own_stand_in.jobs[RUNNING].ended += 100
    page.clock.fast_forward("01:00:00")
    expect(page.get_by_text("611 of 840 mini-batches succeeded")).to_be_visible()
    expect(page.get_by_text("Live", exact=True)).to_be_visible()


def test_stream_that_a_proxy_holds_back_is_noticed(own_stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{own_stand_in.address}#/jobs/{RUNNING}", prepare=asleep)
    expect(page.get_by_text("511 of 840 mini-batches succeeded")).to_be_visible()
    own_stand_in.is_silent = True
    own_stand_in.jobs[RUNNING].ended += 3
    for _ in range(20):
        page.clock.run_for(1000)
    expect(page.get_by_text("514 of 840 mini-batches succeeded")).to_be_visible()


@pytest.mark.parametrize("tab", ["", "/mini-batches", "/timeline", "/nodes", "/logs?path=readme.txt"])
def test_removed_job_is_not_asked_for_again(tab: str, own_stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{own_stand_in.address}#/jobs/{RUNNING}{tab}", prepare=asleep)
    expect(page.locator(".title .badge")).to_have_text("Running")
    complete = {
        "": "text=KeyError",
        "/mini-batches": "tbody tr",
        "/timeline": "canvas",
        "/nodes": "text=What happened",
    }.get(tab, ".log-line")
    expect(page.locator(complete).first).to_be_visible()
    del own_stand_in.jobs[RUNNING]
    expect(page.get_by_text("This job has been removed.")).to_be_visible()
    asked = len(own_stand_in.asked)
    for _ in range(60):
        page.clock.run_for(1000)
    # What is asked for later was not asked for before.
    page.evaluate("fetch('/api/v1/info')")
    expect(page.get_by_text("This job has been removed.")).to_be_visible()
    assert [path for path in own_stand_in.asked[asked:] if RUNNING in path or path == "/events"] == []


def test_job_that_is_about_to_start_appears(own_stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    job = own_stand_in.jobs.pop(RUNNING)
    own_stand_in.events = False
    page = open_page(f"{own_stand_in.address}#/jobs/{RUNNING}")
    expect(page.get_by_text(f"There is no job {RUNNING}.")).to_be_visible()
    own_stand_in.jobs[RUNNING] = job
    expect(page.get_by_text("511 of 840 mini-batches succeeded")).to_be_visible()


def test_answer_that_is_cut_off_is_a_lost_connection(own_stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{own_stand_in.address}#/jobs/{FAILED}")
    expect(page.get_by_text("What failed, by cause")).to_be_visible()
    own_stand_in.cuts_answers = True
    page.locator(".tabs").get_by_role("link", name="Nodes").click()
    expect(page.get_by_text("Connection lost")).to_be_visible()
    expect(page.get_by_role("alert").filter(has_text="The portal does not answer. Check")).to_be_visible()
    expect(page.get_by_role("heading", name="invoices")).to_be_visible()
    own_stand_in.cuts_answers = False
    expect(page.get_by_text("What happened")).to_be_visible()
    expect(page.get_by_text("Live", exact=True)).to_be_visible()


def test_slow_answer_does_not_hold_up_another_job(own_stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    own_stand_in.events = False
    own_stand_in.held.add(f"/jobs/{RUNNING}")
    page = open_page(f"{own_stand_in.address}#/jobs/{RUNNING}")
    expect(page.get_by_text("Loading")).to_be_visible()
    show(page, f"jobs/{FAILED}")
    expect(page.get_by_text("What failed, by cause")).to_be_visible()
    own_stand_in.held.clear()
    show(page, f"jobs/{RUNNING}")
    expect(page.get_by_text("511 of 840 mini-batches succeeded")).to_be_visible()


def test_trouble_of_the_list_is_not_reported_for_a_job(own_stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(own_stand_in.address)
    expect(page.locator("table.jobs")).to_be_visible()
    asked = own_stand_in.asked.count("/jobs")
    own_stand_in.trouble = "the store does not answer"
    deadline = time.monotonic() + 10
    while own_stand_in.asked.count("/jobs") == asked:
        assert time.monotonic() < deadline
        page.wait_for_timeout(20)
    own_stand_in.held.add(f"/jobs/{RUNNING}")
    page.evaluate(
        "window.told = 0; new MutationObserver(() => { told += document.querySelectorAll('[role=alert]').length; })"
        ".observe(document.body, { subtree: true, childList: true })"
    )
    own_stand_in.events = False
    show(page, f"jobs/{RUNNING}")
    expect(page.get_by_text("Loading")).to_be_visible()
    assert page.evaluate("told") == 0


def test_page_polls_without_events(own_stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    own_stand_in.events = False
    page = open_page(f"{own_stand_in.address}#/jobs/{RUNNING}")
    expect(page.get_by_text("511 of 840 mini-batches succeeded")).to_be_visible()
    own_stand_in.jobs[RUNNING].ended += 1
    expect(page.get_by_text("512 of 840 mini-batches succeeded")).to_be_visible()


def test_log_that_cannot_be_read_is_not_called_empty(own_stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    own_stand_in.refused.add(f"/jobs/{FAILED}/logs/text")
    page = open_page(f"{own_stand_in.address}#/jobs/{FAILED}/logs?path=readme.txt")
    expect(page.get_by_role("alert").filter(has_text="the store does not answer")).to_be_visible()
    assert page.get_by_text("The file is empty.").count() == 0
    own_stand_in.refused.clear()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".log-line").first).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
