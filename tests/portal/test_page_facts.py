"""The facts on the pages of the list, a job, its nodes and the target."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from page_client import FAILED, RUNNING, show
from stand_in import StandIn

pytestmark = pytest.mark.xdist_group("page")


def panel(page: Page, title: str) -> Locator:
    return page.locator(".panel").filter(has_text=title).first


def test_row_of_a_job_has_its_cause_and_its_numbers(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(stand_in.address)
    row = page.locator("tr.opens").filter(has=page.locator(f"a[href*='{FAILED}']"))
    expect(row.locator(".badge")).to_have_text("Failed")
    expect(row.locator(".cause")).to_contain_text(re.compile(r"\w+"))
    expect(row.locator("[data-label=failed]")).to_have_text(re.compile(r"^[1-9][\d,]*$"))
    expect(row.locator("[data-label=rate]")).to_contain_text("/")
    expect(row.locator("[data-label=took]")).to_contain_text(re.compile(r"\d"))
    expect(row.locator("time")).to_have_text(re.compile("ago"))


def test_job_shows_its_rate_its_limits_and_its_settings(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(stand_in.address)
    show(page, f"jobs/{FAILED}")
    expect(panel(page, "Attempts that ended, by time").locator("canvas").first).to_be_visible()
    gauges = panel(page, "How near each limit is")
    expect(gauges.get_by_role("img").first).to_have_attribute("aria-label", re.compile(r"\d items?, limit \d+$"))
    expect(gauges.locator(".gauge .num.bad").first).to_be_visible()
    settings = panel(page, "Settings")
    expect(settings).to_contain_text(re.compile(r"script\S*\.py"))
    expect(settings.locator("details").first).to_be_visible()


def test_attempts_are_drawn_under_the_charts_of_their_node(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(stand_in.address)
    show(page, f"jobs/{FAILED}/nodes")
    figures = panel(page, "Node ").locator("figure")
    attempts = figures.filter(has=page.get_by_role("heading", name="Attempts", exact=True))
    expect(attempts.locator("canvas").first).to_be_visible()
    chart = figures.first.bounding_box()
    below = attempts.bounding_box()
    assert chart and below and chart["y"] < below["y"], "first the resources, then what ran"


def test_target_shows_what_is_in_flight_and_its_reducers(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(stand_in.address)
    show(page, "target")
    tasks = page.get_by_role("row").filter(has=page.get_by_role("cell", name="tasks", exact=True))
    expect(tasks.get_by_role("cell")).to_have_text(["tasks", "1204", "96", "0"])
    reducer = panel(page, "Workers and reducers").get_by_role("row").filter(has_text="reducer")
    expect(reducer.get_by_role("link")).to_have_text(RUNNING)
