"""What the pointer and the keyboard do on charts, tables and logs."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from page_client import COMPLETED, FAILED, eventually, show
from stand_in import StandIn

pytestmark = pytest.mark.xdist_group("page")


def test_output_button_only_where_something_can_be_downloaded(
    own_stand_in: StandIn, open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{own_stand_in.address}#/jobs/{COMPLETED}")
    download = page.locator(".title .actions").get_by_role("link", name="Output")
    expect(download).to_have_attribute("href", f"/api/v1/jobs/{COMPLETED}/output/raw")
    # As for a folder that the script wrote.
    own_stand_in.jobs[COMPLETED].is_downloadable = False
    page.reload()
    expect(page.get_by_role("button", name="Commands")).to_be_visible()
    expect(download).to_have_count(0)
    show(page, f"jobs/{COMPLETED}/output")
    expect(page.get_by_text("To read it")).to_be_visible()
    expect(page.get_by_role("link", name="Download")).to_have_count(0)


def test_only_the_main_button_opens_a_bar_of_the_timeline(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    address = f"{stand_in.address}#/jobs/{FAILED}/timeline"
    page = open_page(address)
    canvas = page.locator(".gantt canvas").first
    expect(canvas).to_be_visible()
    eventually(page, "document.querySelector('.gantt canvas').width > 300")
    box = canvas.bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + 6
    page.mouse.move(x, y)
    expect(page.locator(".tip")).to_contain_text("Mini-batch")
    for button in ("right", "middle"):
        page.mouse.click(x, y, button=button)
    # A drag that the browser ends, as when the window loses the pointer.
    page.mouse.down()
    page.mouse.move(x + 90, y, steps=3)
    expect(page.locator(".gantt .map-shade")).to_be_visible()
    canvas.dispatch_event("pointercancel")
    expect(page.locator(".gantt .map-shade")).to_have_count(0)
    page.mouse.up()
    expect(page).to_have_url(address)
    page.mouse.move(x, y)
    page.mouse.click(x, y)
    expect(page.get_by_role("heading", name="Mini-batch")).to_be_visible()


def test_arrow_keys_scroll_before_they_leave_a_mini_batch(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{stand_in.address}#/jobs/{FAILED}/mini-batches/2", width=360)
    here = page.url
    table = page.locator(".scroll[tabindex='0']").filter(has_text="currency")
    table.evaluate("table => { table.style.width = '120px'; }")
    table.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    eventually(page, "document.activeElement.scrollLeft > 0")
    expect(page).to_have_url(here)
    page.get_by_role("button", name="Copy the job file").focus()
    page.keyboard.press("ArrowRight")
    expect(page).to_have_url(here.replace("mini-batches/2", "mini-batches/3"))


def test_page_of_the_table_beyond_its_end(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{stand_in.address}#/jobs/{FAILED}/mini-batches?offset=900")
    expect(page.get_by_text("There are no more mini-batches.")).to_be_visible()
    page.get_by_role("button", name="Previous", exact=True).click()
    expect(page.get_by_text("301 to 400 of 400")).to_be_visible()
    show(page, f"jobs/{FAILED}/mini-batches?offset=900")
    page.get_by_role("button", name="Show the first").click()
    expect(page.get_by_text("1 to 100 of 400")).to_be_visible()


def test_keyboard_reaches_the_link_of_every_line(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{stand_in.address}#/jobs/{FAILED}/logs?path=user/stdout/0/process001.stdout.txt&at=0")
    expect(page.locator(".log-line.marked a")).to_have_text("1")
    page.locator(".log").focus()
    page.keyboard.press("Tab")
    expect(page.locator(".log-line.marked a")).to_be_focused()
    for key in ("ArrowDown", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    expect(page.locator(".log-line a").filter(has_text=re.compile("^2$"))).to_be_focused()
    for _ in range(5):
        page.keyboard.press("PageDown")
    eventually(page, "Number(document.activeElement.textContent) > 100")
    number = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    expect(page.locator(".log-line.marked a")).to_have_text(number)
    expect(page.locator(".log-line.marked a")).to_be_focused()
    log = stand_in.jobs[FAILED].log().splitlines(keepends=True)
    expect(page).to_have_url(re.compile(f"at={sum(map(len, log[: int(number) - 1]))}$"))
    page.keyboard.press("Home")
    expect(page.locator(".log-line a").first).to_be_focused()
    expect(page.locator(".log-line a").first).to_have_text("1")
