"""What several tests do with the page."""

import time

from playwright.sync_api import Page

# Jobs of the stand-in.
FAILED = "invoices-20261123-120044-51be02"
RUNNING = "invoices-20261123-141320-7f21c0"
COMPLETED = "embeddings-20261122-181200-c4e1b7"
MILLION = "million-20261122-201500-0a11ce"
HOSTILE = "hostile-20261120-101010-666"


def show(page: Page, place: str) -> None:
    """Goes to another page of the portal without loading it again."""
    page.evaluate("place => { location.hash = place; }", f"#/{place}")


def eventually(page: Page, condition: str) -> None:
    """Waits for a condition. The policy of the page forbids what `wait_for_function` does."""
    deadline = time.monotonic() + 60
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        time.sleep(0.02)


def violations(page: Page, axe: str) -> list[str]:
    """What axe-core finds; `axe` is its source."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [f"{each['id']}: {node['target']} {node['failureSummary']}" for each in found for node in each["nodes"][:3]]


def scroll_up(page: Page) -> None:
    """Scrolls a log up, as long as there is more before what is loaded."""
    for _ in range(60):
        before = page.locator(".log-inner").evaluate("inner => inner.clientHeight")
        is_whole = page.get_by_text("scroll for more").count() == 0
        page.locator(".log").evaluate("log => { log.scrollTop = 0; }")
        if is_whole:
            return
        # The lines that were shown stay where they were.
        eventually(
            page,
            f"document.querySelector('.log-inner').clientHeight > {before} "
            "&& document.querySelector('.log').scrollTop > 400",
        )
    raise AssertionError("the beginning of the log does not come")
