"""A real browser for tests of the portal's page; `conftest.py` makes these fixtures known."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from harness import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# In milliseconds, generous because test machines are busy.
PATIENCE = 60_000
AXE = ROOT / "services" / "portal" / "web" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's headless Chromium, which scripts/test installs."""
    # Most tests open no page.
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    executable = shutil.which("chromium-headless-shell")
    if executable is None:
        pytest.skip("its browser is not installed (on Debian: apt-get install chromium-headless-shell)")
    with sync_playwright() as playwright:
        # The sandbox of the browser needs rights that a container rarely has; the tests open pages of their own only.
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens an address in a window of its own. The test fails if the page reports an error."""
    contexts = []
    problems: list[str] = []

    def opened(
        address: str,
        *,
        width: int = 1440,
        scheme: str = "light",
        prepare: Callable[[Page], object] | None = None,
        **more: Any,
    ) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        # A refused request is what some tests are about.
        page.on(
            "console",
            lambda said: said.type == "error" and "Failed to load" not in said.text and problems.append(said.text),
        )
        if prepare:
            prepare(page)
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    problems = [problem for problem in problems if "ERR_" not in problem]
    assert problems == []


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, which is installed with the packages of the page."""
    if not AXE.exists():
        folder = tmp_path_factory.mktemp("page")
        subprocess.run([ROOT / "scripts" / "build-page", folder], check=True, capture_output=True)
    return AXE.read_text()
