"""What the pointer and the keyboard do on charts, tables and logs."""

import re
from collections.abc import Callable
from urllib.parse import parse_qs

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


def test_every_worker_of_a_target_is_seen(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{stand_in.address}#/target")
    panel = page.locator(".panel").filter(has_text="Workers and reducers")
    busy, idle = (panel.locator("tr").filter(has_text=node) for node in ("i-0a1b2c3d", "i-0b2c3d4e"))
    expect(busy).to_contain_text("2 GPUs, 16 processors, 64.0 GB of memory, zone=eu-central-1a")
    expect(busy.get_by_role("link")).to_have_text("invoices-20261123-141320-7f21c0")
    expect(idle).to_contain_text("4 processors, 16.0 GB of memory")


def window_of(page: Page) -> tuple[int, int]:
    """The part of the timeline that is shown, as the address names it."""
    query = parse_qs(page.url.partition("?")[2])
    return int(query["from"][0]), int(query["to"][0])


def test_timeline_is_zoomed_by_pointer_button_and_key(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{stand_in.address}#/jobs/{FAILED}/timeline")
    canvas = page.locator(".gantt canvas").first
    expect(canvas).to_be_visible()
    eventually(page, "document.querySelector('.gantt canvas').width > 300")
    attempts = int(page.locator(".panel h2 .num").first.inner_text())
    box = canvas.bounding_box()
    assert box
    middle, y = box["x"] + box["width"] / 2, box["y"] + 6
    page.mouse.move(middle, y)
    page.mouse.down()
    page.mouse.move(middle + 100, y, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"from=\d+&to=\d+"))
    expect(page.get_by_text("in this window")).to_be_visible()
    first, last = window_of(page)
    job = stand_in.jobs[FAILED]
    assert job.start < first < last < job.start + job.elapsed * 1000
    shown = page.locator(".gantt div[role=application]")
    shown.focus()
    page.keyboard.press("+")
    expect(page).not_to_have_url(re.compile(f"from={first}&"))
    closer = window_of(page)
    assert first < closer[0] < closer[1] < last
    page.keyboard.press("ArrowRight")
    expect(page).not_to_have_url(re.compile(f"from={closer[0]}&"))
    moved = window_of(page)
    assert moved[0] > closer[0] and abs((moved[1] - moved[0]) - (closer[1] - closer[0])) <= 2
    page.get_by_role("button", name="Zoom out").click()
    expect(page).not_to_have_url(re.compile(f"from={moved[0]}&"))
    assert window_of(page)[0] < moved[0]
    page.get_by_role("button", name="Whole job").click()
    expect(page).to_have_url(f"{stand_in.address}#/jobs/{FAILED}/timeline")
    expect(page.locator(".panel h2 .num").first).to_have_text(str(attempts))


def test_commands_are_shown_and_copied(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{stand_in.address}#/jobs/{FAILED}", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Commands").click()
    dialog = page.get_by_role("dialog", name="Commands")
    expect(dialog.get_by_text(f"gristmill retry {FAILED}")).to_be_visible()
    dialog.get_by_role("button", name="Copy the command for logs").click()
    expect(page.get_by_text("Copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == f"gristmill logs {FAILED}"
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_be_hidden()


def test_huge_fields_do_not_break_a_page(own_stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    job = own_stand_in.jobs[FAILED]
    huge = "x" * 9000
    job.__dict__.update(error=lambda: f"ValueError: {huge}", item=lambda number, at=0: f"/data/{huge}_{number}")
    page = open_page(own_stand_in.address, width=768)
    complete = {
        "": "table.jobs a.name",
        f"jobs/{FAILED}": ".sentence",
        f"jobs/{FAILED}/mini-batches": ".batches tbody tr",
        f"jobs/{FAILED}/mini-batches/30": "h2.big + .badge",
        f"jobs/{FAILED}/timeline": "text=Durations",
        f"jobs/{FAILED}/logs?path=user/stdout/0/process001.stdout.txt": "text=more characters",
    }
    job.__dict__.update(log=lambda: f"one\nValueError: {huge}\n".encode())
    for place, text in complete.items():
        show(page, place)
        expect(page.locator(text).first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 768, place


def test_tab_alone_reaches_the_row_and_the_action(own_stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    """No element is focused by the test: Tab and Enter are all that is used."""
    page = open_page(own_stand_in.address)
    expect(page.locator("table.jobs")).to_be_visible()

    def tab_to(condition: str) -> None:
        for _ in range(120):
            page.keyboard.press("Tab")
            if page.evaluate(f"(element => {condition})(document.activeElement)"):
                return
        raise AssertionError(f"Tab does not reach what meets {condition}")

    tab_to(f"element.matches('a.name') && element.href.endsWith('{FAILED}')")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="invoices", level=1)).to_be_visible()
    tab_to("element.textContent === 'Retry'")
    for key in ("Enter", "Escape"):
        page.keyboard.press(key)
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert own_stand_in.posted == []
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    tab_to("element.textContent === 'Retry the job'")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert own_stand_in.posted == [f"/jobs/{FAILED}/retry"]
    tab_to("element.matches('.tabs a') && element.textContent.startsWith('Mini-batches')")
    page.keyboard.press("Enter")
    expect(page.locator(".batches")).to_be_visible()
    tab_to("element.textContent === 'Took'")
    page.keyboard.press("Enter")
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Took↓")
    tab_to("element.matches('.batches tbody a')")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Mini-batch")).to_be_visible()
    tab_to("element.matches('.tabs a') && element.textContent === 'Logs'")
    page.keyboard.press("Enter")
    expect(page.locator(".log")).to_be_visible()
    tab_to("element.matches('.files a') && element.textContent.startsWith('process001.stdout')")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("path=user"))
    tab_to("element.matches('.log-line a')")


def test_back_undoes_choices_one_by_one_but_not_letters(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{stand_in.address}#/jobs/{FAILED}/mini-batches")
    rows = page.locator("table.batches tbody tr")
    expect(rows).to_have_count(100)
    page.get_by_role("group", name="State").get_by_role("button", name="Failed", exact=True).click()
    expect(page).to_have_url(re.compile(r"state=failed"))
    page.get_by_label("Number, item or error").press_sequentially("inv")
    expect(page).to_have_url(re.compile(r"q=inv"))
    page.go_back()
    expect(page).not_to_have_url(re.compile(r"state=|q="))
    expect(rows).to_have_count(100)
    page.go_forward()
    expect(page).to_have_url(re.compile(r"state=failed"))


def test_file_of_errors_opens_at_its_first_error(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{stand_in.address}#/jobs/{FAILED}/logs?path=user/error/0/process001.txt")
    first = stand_in.jobs[FAILED].item(0)
    expect(page.locator(".log-line").first).to_contain_text(first)
    show(page, f"jobs/{FAILED}/logs?path=user/stdout/0/process001.stdout.txt")
    expect(page.locator(".log-line").first).to_contain_text("INFO")
    expect(page.locator(".log-line").first).not_to_contain_text(first)


def test_current_tab_is_in_view_on_a_narrow_screen(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{stand_in.address}#/jobs/{FAILED}/output", width=360)
    tab = page.locator(".tabs [aria-current]")
    expect(tab).to_have_text("Output")
    expect(tab).to_be_in_viewport(ratio=0.9)


def test_search_that_takes_long_says_that_it_works(own_stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{own_stand_in.address}#/jobs/{FAILED}/mini-batches")
    rows = page.locator("table.batches tbody tr")
    expect(rows).to_have_count(100)
    own_stand_in.held.add(f"/jobs/{FAILED}/mini-batches")
    page.get_by_label("Number, item or error").fill("invoice")
    expect(page.get_by_text("Searching …")).to_be_visible()
    expect(rows).to_have_count(100)
    own_stand_in.held.clear()
    expect(page.get_by_text("Searching …")).to_be_hidden()
