"""The page in a real browser, before a stand-in: every page, width and theme; keyboard; hostile texts; outages."""

import datetime
import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from made_past import MARKUP
from page_client import COMPLETED, FAILED, HOSTILE, MILLION, RUNNING, eventually, show, violations
from stand_in import StandIn

pytestmark = pytest.mark.xdist_group("page")

# Every page with a text that appears once it is complete.
PAGES = {
    "": "Jobs",
    f"jobs/{FAILED}": "What failed, by cause",
    f"jobs/{RUNNING}": "What it waits for now",
    f"jobs/{FAILED}/mini-batches": "/invoice_0000",
    f"jobs/{FAILED}/mini-batches/30": "Whole traceback",
    f"jobs/{FAILED}/timeline": "The slowest 20",
    f"jobs/{FAILED}/nodes": "What happened",
    f"jobs/{FAILED}/logs": "First error",
    f"jobs/{COMPLETED}/output": "To read it",
    f"jobs/{FAILED}/source": "def parse",
    f"jobs/{FAILED}/source?since={COMPLETED}": "return int(text)",
    f"jobs/{FAILED}/compare": "2 files differ",
    "target": "Dead letters",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1440])
def test_every_page_fits_and_is_accessible(
    width: int, scheme: str, axe: str, stand_in: StandIn, open_page: Callable[..., Page]
) -> None:
    page = open_page(stand_in.address, width=width, scheme=scheme, bypass_csp=True)
    problems = []
    for place, text in PAGES.items():
        show(page, place)
        expect(page.get_by_text(text).first).to_be_visible()
        if page.evaluate("document.documentElement.scrollWidth") > width:
            problems.append(f"{place} is wider than the window")
        # Colours differ by theme, the structure by width.
        if (width, scheme) in ((1440, "light"), (768, "light"), (360, "dark")):
            problems += [f"{place}: {problem}" for problem in violations(page, axe)]
    assert problems == []


# Each page with the button that opens a dialog.
DIALOGS = {
    f"jobs/{RUNNING}": ("Cancel", "Commands"),
    f"jobs/{FAILED}": ("Retry", "Run these again", "Run with other settings"),
    f"jobs/{FAILED}/mini-batches/30": ("Run it again",),
}


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (768, "dark"), (360, "light")])
def test_every_dialog_fits_and_is_accessible(
    width: int, scheme: str, axe: str, stand_in: StandIn, open_page: Callable[..., Page]
) -> None:
    page = open_page(stand_in.address, width=width, scheme=scheme, bypass_csp=True)
    problems = []
    for place, buttons in DIALOGS.items():
        for button in buttons:
            show(page, place)
            page.get_by_role("button", name=button, exact=True).click()
            dialog = page.get_by_role("dialog")
            expect(dialog).to_be_visible()
            box = dialog.bounding_box()
            if not box or box["x"] < 0 or box["x"] + box["width"] > width:
                problems.append(f"{button} is wider than the window")
            problems += [f"{place}, {button}: {problem}" for problem in violations(page, axe)]
            page.keyboard.press("Escape")
            expect(dialog).to_be_hidden()
    assert problems == []


def test_keys_skip_the_head_and_move_through_list_and_map(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(stand_in.address)
    expect(page.get_by_role("link", name="invoices").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('name')"):
            break
    for key in ("ArrowDown", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    expect(page.get_by_role("heading", name="invoices", level=1)).to_be_visible()
    expect(page).to_have_title("invoices · Gristmill")
    show(page, f"jobs/{RUNNING}/mini-batches")
    page.get_by_role("application").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    expect(page.get_by_text("Mini-batch 2: succeeded")).to_be_visible()
    for key in ("n", "Enter"):
        page.keyboard.press(key)
    expect(page.locator("h2.big + .badge.bad")).to_be_visible()


def test_map_names_opens_and_selects(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{stand_in.address}#/jobs/{FAILED}/mini-batches")
    canvas = page.locator(".map canvas")
    expect(canvas).to_be_visible()
    eventually(page, "document.querySelector('.map canvas').width > 300")
    box = canvas.bounding_box()
    assert box
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    expect(page.locator(".tip")).to_contain_text("Mini-batch 0")
    page.mouse.down()
    page.mouse.move(box["x"] + 18 * 9 + 5, box["y"] + 5, steps=4)
    expect(page.locator(".tip")).to_contain_text("10 mini-batches")
    page.mouse.up()
    expect(page.get_by_text("Selected: 0 to 9 (10 mini-batches)")).to_be_visible()
    expect(page.locator(".batches tbody tr")).to_have_count(10)
    page.get_by_role("button", name="Clear").click()
    page.get_by_role("button", name="Failed", exact=True).first.click()
    expect(page.locator(".batches tbody tr")).to_have_count(14)
    page.get_by_role("button", name="Took").click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Took↓")
    page.mouse.click(box["x"] + 18 * 2 + 5, box["y"] + 5)
    expect(page.get_by_role("heading", name="Mini-batch 2")).to_be_visible()


def test_million_mini_batches_are_on_one_screen(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{stand_in.address}#/jobs/{COMPLETED}")
    expect(page.get_by_role("heading", name="embeddings")).to_be_visible()
    show(page, f"jobs/{MILLION}/mini-batches")
    eventually(page, "(document.querySelector('.map canvas')?.width ?? 0) > 1000")
    cells = page.evaluate(
        "(() => { const { width, height } = document.querySelector('.map canvas'); return width * height; })()"
    )
    assert cells >= 1_000_000
    box = page.locator(".map canvas").bounding_box()
    assert box and box["height"] < 900
    for tab in ("timeline", "nodes", "mini-batches?by=duration"):
        show(page, f"jobs/{MILLION}/{tab}")
        expect(page.locator("canvas").first).to_be_visible()
    assert page.evaluate("performance.memory.usedJSHeapSize") < 100_000_000


def test_hostile_texts_stay_texts(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(stand_in.address)
    # Each page with something that only it has.
    pages = {
        "": "table.jobs a.name",
        f"jobs/{HOSTILE}": ".sentence",
        f"jobs/{HOSTILE}/mini-batches": ".batches tbody tr",
        f"jobs/{HOSTILE}/mini-batches/7": "h2.big + .badge",
        f"jobs/{HOSTILE}/timeline": "text=Durations",
        f"jobs/{HOSTILE}/nodes": "text=What happened",
        f"jobs/{HOSTILE}/logs": ".log-line",
        f"jobs/{HOSTILE}/source": ".code",
        f"jobs/{HOSTILE}/output": "text=There is no output",
        f"jobs/{MARKUP}": "text=There is no job",
    }
    seen = 0
    for place, complete in pages.items():
        show(page, place)
        expect(page.locator(complete).first).to_be_visible()
        assert page.title() != "broken in"
        assert page.locator("#app img, #app script, #app style, #app iframe").count() == 0
        shown = page.locator("body").inner_text()
        seen += shown.count("<img src=x onerror")
        assert not [character for character in shown if ord(character) < 32 and character not in "\n\t"], place
        assert "\u202e" not in page.locator("pre, .log").all_inner_texts().__repr__()
    assert seen > 10
    show(page, f"jobs/{HOSTILE}/logs")
    expect(page.locator(".log .a-f2").first).to_have_text("INFO")
    assert page.locator(".log a[href^='https']").count() == 0


@pytest.mark.parametrize("year", [1999, 2051])
def test_ages_follow_the_clock_of_the_portal(year: int, stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    def ages(page: Page) -> list[str]:
        expect(page.locator("table.jobs time").first).to_be_visible()
        return page.locator("table.jobs time").all_inner_texts()

    right = open_page(stand_in.address)
    wrong = open_page(stand_in.address, prepare=lambda page: page.clock.install(time=datetime.datetime(year, 3, 1)))
    expect(wrong.get_by_text("The clock of this computer differs from the portal's")).to_be_visible()
    assert right.get_by_text("The clock of this computer differs").count() == 0
    deadline = time.monotonic() + 10
    while ages(wrong) != ages(right):
        assert time.monotonic() < deadline, (ages(wrong), ages(right))
        time.sleep(0.1)
    show(wrong, f"jobs/{RUNNING}")
    expect(wrong.get_by_text("511 of 840 mini-batches succeeded")).to_be_visible()
    for place, text in PAGES.items():
        show(wrong, place)
        expect(wrong.get_by_text(text).first).to_be_visible()


def test_phases_and_speculative_runs_are_told_apart(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{stand_in.address}#/jobs/{FAILED}/mini-batches/13")
    expect(page.get_by_text("Try 1, speculative run")).to_be_visible()
    first = page.locator(".panel", has_text="Original run").first
    expect(first).to_contain_text("stopped")
    phases = page.locator(".phases").first
    expect(phases).to_have_attribute("aria-label", re.compile("waited .*, prepared .*, loaded .*, ran .*, reported "))
    colours = phases.locator("span").evaluate_all("spans => spans.map(span => getComputedStyle(span).backgroundColor)")
    assert len(set(colours)) == 5, colours
    show(page, f"jobs/{FAILED}/mini-batches/14")
    expect(page.locator(".panel", has_text="The original run succeeded first.")).to_contain_text("stopped")
    show(page, f"jobs/{FAILED}/timeline")
    expect(page.get_by_text("speculative run").first).to_be_visible()
    for name in ("waited", "prepared", "loaded", "ran", "reported"):
        expect(page.get_by_role("cell", name=name, exact=True)).to_be_visible()
    show(page, f"jobs/{FAILED}")
    expect(page.locator(".fact", has_text="Speculative runs")).to_contain_text("1 won")


def test_lineage_says_how_often_the_result_was_reused(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{stand_in.address}#/jobs/{COMPLETED}")
    history = page.locator(".panel").filter(has_text="Other jobs of this name")
    expect(history).to_contain_text("reused by3 runs with the same inputs, script and settings, last")
    show(page, f"jobs/{FAILED}")
    expect(history).to_contain_text("started")
    expect(history).not_to_contain_text("reused by")


def test_dead_letters_are_sent_again(own_stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{own_stand_in.address}#/target")
    page.get_by_role("button", name="Delete", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("gristmill dead-letters --delete --target prod")
    dialog.get_by_role("button", name="Leave them").click()
    assert own_stand_in.posted == []
    page.get_by_role("button", name="Send again").click()
    page.get_by_role("dialog").get_by_role("button", name="Send them").click()
    expect(page.get_by_text("1 message sent again")).to_be_visible()
    assert own_stand_in.posted == ["/target/dead-letters/redrive"]
