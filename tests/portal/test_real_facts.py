"""What the pages of real jobs tell: a death and its reason, resources, gaps and stragglers, settings, limits."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from harness import FAILED, Workplace
from page_client import show
from portal_client import FAILS_ON_ONE, Portal

pytestmark = pytest.mark.xdist_group("page")

# The file 001 takes long, the process of 004 is killed once, the file 006 fails.
SCRIPT = """
    import os, signal, time
    from recorder import record, recorded
    def run(files):
        name = os.path.basename(files[0])
        print("reading", name)
        if name == "001.txt":
            time.sleep(4)
        if name == "004.txt" and not recorded("died"):
            record("died")
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "006.txt":
            time.sleep(0.5)
            raise ValueError("six is bad")
        return [name]
"""
Ran = tuple[Portal, str]
STRAGGLER = 1
COUNT = 12
# Colours of the light theme.
GOOD, BAD = (0x3F, 0x9D, 0x63), (0xD6, 0x3A, 0x48)


@pytest.fixture(scope="module")
def ran(shared_workplace: Workplace) -> Ran:
    """A portal with a job that has ended, and its id."""
    shared_workplace.data(COUNT)
    settings = {"process_count_per_node": 2, "run_max_try": 2, "isolate": "off", "speculation": False}
    arguments = ["--resource_monitor_interval", 1, "--model", "<b>small</b>"]
    ended = shared_workplace.job(SCRIPT, **settings, arguments=arguments).run()
    assert ended.mini_batches == (COUNT, COUNT - 1, 1), ended
    return Portal(shared_workplace), ended.job_id


def panel(page: Page, title: str) -> Locator:
    return page.locator(".panel").filter(has=page.get_by_role("heading", name=title))


def colours(canvas: Locator) -> set[tuple[int, int, int]]:
    """All colours on a canvas."""
    found = canvas.evaluate(
        """canvas => {
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const all = new Set();
            for (let at = 0; at < data.length; at += 4) {
                if (data[at + 3] === 255) all.add(data.slice(at, at + 3).join());
            }
            return [...all];
        }"""
    )
    return {tuple(map(int, each.split(","))) for each in found}


def colour_at(canvas: Locator, x: float, y: float) -> tuple[int, ...]:
    pixel = "(canvas, [x, y]) => [...canvas.getContext('2d').getImageData(x, y, 1, 1).data]"
    return tuple(canvas.evaluate(pixel, [x, y])[:3])


def test_nodes_show_a_death_resources_and_attempts(ran: Ran, open_page: Callable[..., Page]) -> None:
    portal, job_id = ran
    page = open_page(portal.address)
    show(page, f"jobs/{job_id}/nodes")
    events = panel(page, "What happened").get_by_role("listitem")
    expect(events.filter(has_text="started with process id")).to_have_count(3)
    expect(events.filter(has_text=re.compile(r"process00\d .*exits with returncode -9"))).to_have_count(1)
    [node] = portal.get(f"/jobs/{job_id}/nodes")["nodes"]
    disk = next(series for series in node["samples"]["series"] if series["name"] == "Disk used")
    used = [value for value in disk["values"] if value is not None]
    assert used and all(0 < value <= 100 for value in used), disk
    figures = panel(page, "Node 0").locator("figure")
    chart = figures.filter(has=page.get_by_role("heading", name="Disk used", exact=True))
    expect(chart.get_by_role("img", name="Disk used over time")).to_be_visible()
    expect(chart.locator("canvas")).to_be_visible()
    attempts = figures.filter(has=page.get_by_role("heading", name="Attempts", exact=True))
    drawn = attempts.get_by_role("img", name="Attempts of node 0").locator("canvas")
    expect(drawn).to_be_visible()
    assert {GOOD, BAD} <= colours(drawn), "successes and the failure are drawn"
    box, above = drawn.bounding_box(), chart.bounding_box()
    assert box and above and above["y"] < box["y"], "the resources, and the attempts under them"


def test_timeline_shows_a_straggler_and_the_gap_beside_it(ran: Ran, open_page: Callable[..., Page]) -> None:
    portal, job_id = ran
    page = open_page(portal.address)
    show(page, f"jobs/{job_id}/timeline")
    expect(panel(page, "The slowest").locator("tbody a.num").first).to_have_text(str(STRAGGLER))
    timeline = portal.get(f"/jobs/{job_id}/timeline")
    bars = timeline["bars"]
    slow = bars["mini_batch"].index(STRAGGLER)
    canvas = page.locator(".gantt canvas")
    expect(canvas).to_be_visible()
    box = canvas.bounding_box()
    assert box
    left, right, row = 130, 8, 20
    whole = timeline["to"] - timeline["from"]

    def place(process: int, at: float) -> dict[str, float]:
        return {"x": left + (box["width"] - left - right) * at / whole, "y": process * row + row / 2}

    # Late in the straggler, all other mini-batches have ended.
    at = bars["start"][slow] + 0.8 * (bars["end"][slow] - bars["start"][slow])
    others = [end for bar, end in enumerate(bars["end"]) if bar != slow]
    assert max(others) < at, "the straggler runs alone"
    own = bars["process"][slow]
    tip = page.locator(".tip")
    canvas.hover(position=place(own, at))
    expect(tip).to_contain_text(f"Mini-batch {STRAGGLER}")
    expect(tip).to_contain_text("succeeded after 4")
    canvas.hover(position=place(1 - own, at))
    expect(tip).to_contain_text("idle")
    busy, idle = (colour_at(canvas, **place(process, at)) for process in (own, 1 - own))
    assert busy == GOOD and idle != GOOD, (busy, idle)
    canvas.click(position=place(own, at))
    expect(page.get_by_role("heading", name=f"Mini-batch {STRAGGLER}")).to_be_visible()


def test_job_shows_its_rates_limits_settings_and_script(ran: Ran, open_page: Callable[..., Page]) -> None:
    portal, job_id = ran
    page = open_page(portal.address)
    show(page, f"jobs/{job_id}")
    chart = panel(page, "Attempts that ended, by time").get_by_role("img", name=f"{COUNT - 1} attempts succeeded in")
    expect(chart.locator("canvas")).to_be_visible()
    assert {GOOD, BAD} <= colours(chart.locator("canvas")), "both kinds of attempts are drawn"
    gauges = panel(page, "How near each limit is").locator(".gauge")
    expect(gauges.filter(has_text="Tries of one mini-batch").get_by_role("img")).to_have_attribute(
        "aria-label", "Tries of one mini-batch: 2 tries, limit 2"
    )
    expect(gauges.filter(has_text="Failed items")).to_contain_text("1 item, no limit")
    settings, folder = panel(page, "Settings"), portal.running.workplace.folder
    expect(settings).to_contain_text(f"script{folder / 'code' / 'entry.py'}")
    expect(settings).to_contain_text(f"job file{folder / 'job.yaml'}")
    expect(settings).to_contain_text("mini_batch_size1 file")
    for group, text in (("failures", "run_max_try2"), ("other", "'<b>small</b>'"), ("output", str(folder))):
        settings.locator("summary").filter(has_text=group).click()
        expect(settings.locator("details").filter(has=page.get_by_role("heading", name=group))).to_contain_text(text)


def test_failed_job_names_mini_batch_item_and_exception_also_in_a_report_without_portal(
    workplace: Workplace, open_page: Callable[..., Page]
) -> None:
    workplace.data(6)
    ended = workplace.job(FAILS_ON_ONE, error_threshold=0, isolate="off").run(expect=FAILED)
    portal = Portal(workplace)
    page = open_page(portal.address)
    row = page.locator("tr.opens")
    expect(row.locator(".cause")).to_contain_text("exceeds error threshold 0")
    expect(row.locator("[data-label=failed]")).to_have_text("1")
    expect(row.locator("[data-label=rate]")).to_contain_text("/")
    expect(row.locator("[data-label=took]")).to_contain_text(re.compile(r"\d"))
    [listed] = portal.get("/jobs")["jobs"]
    assert listed["cause"] == ended.cause, listed
    assert listed["elapsed_seconds"] == pytest.approx(ended.result["elapsed_seconds"]), listed
    show(page, f"jobs/{ended.job_id}")
    sentence = page.locator(".sentence")
    expect(sentence).to_contain_text("The first failed mini-batch is 3 (")
    expect(sentence).to_contain_text(str(Path("data", "003.txt")))
    expect(sentence).to_contain_text("ValueError: three is <b>bad</b>")
    limit = page.locator(".gauge").filter(has_text="Failed items")
    expect(limit.locator(".num.bad")).to_have_text("1 item, limit 0")

    portal.running.kill()
    written = workplace.command("report", ended.job_id, "--html", "report.html")
    assert written.exit_status == 0, str(written)
    page = open_page((workplace.folder / "report.html").as_uri())
    expect(page.locator(".sentence")).to_contain_text("error threshold 0")
    expect(page.get_by_text("Report of")).to_be_visible()
    assert page.get_by_role("button", name="Retry").count() == 0
    page.locator(".tabs").get_by_role("link", name="Mini-batches").click()
    page.locator(".batches a").first.click()
    expect(page.locator(".frames .first").first).to_contain_text("entry.py")
    expect(page.get_by_text("Whole traceback").first).to_be_visible()
    show(page, f"jobs/{ended.job_id}/mini-batches?error=three")
    expect(page.locator(".batches tbody tr")).to_have_count(1)
    show(page, f"jobs/{ended.job_id}/mini-batches?process=none")
    expect(page.get_by_text("No mini-batch matches.")).to_be_visible()
    for tab, text in (("Timeline", "The slowest"), ("Nodes", "What happened")):
        page.locator(".tabs").get_by_role("link", name=tab).click()
        expect(page.get_by_text(text).first).to_be_visible()
