"""The page before the real server, on real jobs: running, canceled, continued and interrupted."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from harness import CANCELED, Running, Workplace, go

pytestmark = pytest.mark.xdist_group("page")

# The first file is printed with colours and markup; each file from HOLD on waits; the file 003 fails.
SCRIPT = """
    import os, sys
    from recorder import record, recorded, wait_for
    def run(files):
        name = os.path.basename(files[0])
        print(f"\\x1b[32mreading\\x1b[0m <b>{name}</b>")
        sys.stdout.flush()
        if name >= os.environ.get("HOLD", "999.txt") and not name.startswith("<"):
            record("held", pid=os.getpid())
            wait_for(lambda: recorded("go"))
        if "003" in name:
            raise ValueError("three is <img src=x onerror=\\"document.title='broken in'\\">")
        return [f"{name},<b>{len(name)}</b>"]
"""
HOSTILE = "<img src=x onerror=alert(1)> 003 \x1b[31mred\x1b[0m.txt"


class Portal:
    """A running portal."""

    def __init__(self, workplace: Workplace, *arguments: object) -> None:
        self.running: Running = workplace.start("portal", "--no-open", "--listen", "127.0.0.1:0", *arguments)
        stdout = self.running.process.stdout
        assert stdout is not None
        # http://127.0.0.1:PORT/?token=…
        self.address = stdout.readline().decode().strip()


@pytest.fixture
def portal(workplace: Workplace) -> Portal:
    return Portal(workplace)


def show(page: Page, place: str) -> None:
    page.evaluate("place => { location.hash = place; }", f"#/{place}")


def test_running_job_is_live_is_canceled_and_continued(
    workplace: Workplace, portal: Portal, open_page: Callable[..., Page]
) -> None:
    workplace.data(3)
    running = workplace.job(SCRIPT).start(HOLD="002.txt")
    running.wait_for_record("held")
    page = open_page(portal.address)
    page.get_by_role("link", name="test").click()
    expect(page.locator(".title .badge")).to_have_text("Running")
    progress = page.locator(".fact").filter(has_text="Succeeded").first
    expect(progress).to_contain_text("2 of 3")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    assert running.wait().exit_status == CANCELED
    expect(page.locator(".title .badge")).to_have_text("Canceled")
    go(workplace)
    page.get_by_role("button", name="Retry").click()
    page.get_by_role("button", name="Retry the job").click()
    expect(page.locator(".title .badge")).to_have_text("Completed", timeout=60_000)
    expect(progress).to_contain_text("3 of 3")
    page.locator(".tabs").get_by_role("link", name="Output").click()
    expect(page.locator(".sheet")).to_contain_text("000.txt,<b>7</b>")
    page.locator(".tabs").get_by_role("link", name="Mini-batches").click()
    page.locator(".batches a").first.click()
    expect(page.get_by_text("its rows count")).to_be_visible()


def test_interrupted_job_and_killed_portal_are_told(
    workplace: Workplace, portal: Portal, open_page: Callable[..., Page]
) -> None:
    workplace.data(6)
    job_id = workplace.job(SCRIPT).interrupt("003.txt", 3)
    page = open_page(portal.address)
    expect(page.get_by_text("Interrupted").last).to_be_visible()
    show(page, f"jobs/{job_id}")
    expect(page.locator(".title .badge")).to_have_text("Interrupted")
    portal.running.send(signal.SIGKILL)
    portal.running.wait()
    expect(page.get_by_text("Connection lost")).to_be_visible()
    expect(page.get_by_text("The portal does not answer since")).to_be_visible()
    expect(page.locator(".title .badge")).to_have_text("Interrupted")
