"""What runs now, as the page draws it: on the map, in the table and the legend."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from page_client import RUNNING, eventually
from stand_in import StandIn

pytestmark = pytest.mark.xdist_group("page")

CELLS = """colour => {
    const canvas = document.querySelector('.map canvas');
    const { data, width, height } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    let cells = 0;
    for (let y = 0; y < height; y += 1) for (let x = 0; x < width; x += 1) {
        const at = (x, y) => 4 * (y * width + x);
        const is = (x, y) => x >= 0 && y >= 0 && data.slice(at(x, y), at(x, y) + 3).join() === colour;
        if (is(x, y) && !is(x - 1, y) && !is(x, y - 1)) cells += 1;
    }
    return cells;
}"""


def test_what_runs_is_drawn_on_the_map_and_listed(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    running = len(stand_in.jobs[RUNNING].document()["progress"]["running"])
    page = open_page(f"{stand_in.address}#/jobs/{RUNNING}/mini-batches")
    eventually(page, "(document.querySelector('.map canvas')?.width ?? 0) > 300")
    accent = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--accent').trim()")
    colour = ",".join(str(int(accent[at : at + 2], 16)) for at in (1, 3, 5))
    expect(page.locator(".key.busy")).to_have_text(f"running {running}")
    page.wait_for_timeout(1500)
    assert page.evaluate(CELLS, colour) == running
    page.get_by_role("button", name="Running").click()
    expect(page.locator("table.batches tbody tr")).to_have_count(running)
    expect(page.locator("table.batches tbody tr").first).to_contain_text("so far")
