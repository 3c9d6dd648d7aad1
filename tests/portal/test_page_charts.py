"""What is drawn over time: resources of nodes, processes and GPUs."""

import itertools
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from page_client import FAILED
from stand_in import StandIn

pytestmark = pytest.mark.xdist_group("page")


def test_cpu_and_memory_of_each_process_and_gpu_are_drawn(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{stand_in.address}#/jobs/{FAILED}/nodes")
    node = page.locator(".panel").filter(has_text="Node 0")
    names = "process000, process001, process002, process003"
    for label in (
        f"CPU of {names} over time",
        f"Memory of {names} over time",
        "GPU 0 busy, GPU 1 busy over time",
        "GPU 0 memory, GPU 1 memory over time",
    ):
        expect(node.get_by_role("img", name=label)).to_be_visible()
    chart = node.get_by_role("img", name=f"Memory of {names} over time")
    tip = page.locator(".tip").filter(has_text="process000")
    deadline = time.monotonic() + 10
    # The charts move while those above them are filled.
    for step in itertools.count():
        chart.hover(position={"x": 300 + step % 50, "y": 40})
        if tip.count():
            break
        assert time.monotonic() < deadline, "no note beside the pointer"
    for process in names.split(", "):
        expect(tip).to_contain_text(f"{process}: ")
    expect(tip).to_contain_text(" MB")
