"""`gristmill portal` opens a browser on a desktop, and nowhere else; no browser holds it up."""

from __future__ import annotations

import http.cookiejar
import os
import pty
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator

import pytest

from harness import Workplace, wait_until

RECORDS = '#!/bin/sh\nprintf "%s\\n" "$@" >>"$OPENED"\n'


class Desktop:
    """A terminal, a display, and a stand-in for `xdg-open`."""

    def __init__(self, workplace: Workplace) -> None:
        self.workplace = workplace
        self.folder = workplace.folder / "bin"
        self.folder.mkdir()
        self.file = workplace.folder / "opened"
        self.environment = {
            **{name: value for name, value in workplace.environment.items() if name != "WAYLAND_DISPLAY"},
            "PATH": f"{self.folder}:/usr/bin:/bin",
            "DISPLAY": ":9",
            "OPENED": str(self.file),
        }
        self.terminal, self.side = pty.openpty()
        self.portals: list[subprocess.Popen[bytes]] = []

    def install(self, text: str) -> None:
        (self.folder / "xdg-open").write_text(text)
        (self.folder / "xdg-open").chmod(0o755)

    def start(self, *arguments: str, in_terminal: bool = True, **environment: str | None) -> str:
        """Starts a portal and returns the address that it prints."""
        given = {name: value for name, value in {**self.environment, **environment}.items() if value is not None}
        portal = subprocess.Popen(
            [str(self.workplace.executable), "portal", "--listen", "127.0.0.1:0", *arguments],
            cwd=self.workplace.folder,
            env=given,
            stdin=subprocess.DEVNULL,
            stdout=self.side if in_terminal else subprocess.PIPE,
            start_new_session=True,
        )
        self.portals.append(portal)
        text = b""
        while not text.endswith(b"\n"):
            read = os.read(self.terminal if in_terminal else portal.stdout.fileno(), 4096)
            assert read, "the portal ended"
            text += read
        return text.decode().strip()

    def opened(self) -> list[str]:
        return self.file.read_text().split() if self.file.exists() else []

    def stop(self) -> None:
        """Stops the portals, which must follow the signal at once."""
        for portal in self.portals:
            portal.terminate()
            assert portal.wait(timeout=60) == 0
        self.portals.clear()

    def close(self) -> None:
        for portal in self.portals:
            os.killpg(portal.pid, signal.SIGKILL)
            portal.communicate()
        os.close(self.terminal)
        os.close(self.side)


@pytest.fixture
def desktop(workplace: Workplace) -> Iterator[Desktop]:
    desktop = Desktop(workplace)
    desktop.install(RECORDS)
    yield desktop
    desktop.close()


def answers(address: str) -> bool:
    with urllib.request.urlopen(address.partition("?")[0] + "healthz", timeout=60) as answer:
        return answer.status == 200


def test_browser_opens_the_printed_address(desktop: Desktop) -> None:
    address = desktop.start()
    assert wait_until(desktop.opened, "the browser") == [address]
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    with browser.open(address, timeout=60) as page:
        assert page.status == 200 and "token" not in page.url
    desktop.stop()
    assert desktop.opened() == [address]


def test_wayland_is_a_display_too(desktop: Desktop) -> None:
    address = desktop.start(DISPLAY=None, WAYLAND_DISPLAY="wayland-0")
    assert wait_until(desktop.opened, "the browser") == [address]
    desktop.stop()


@pytest.mark.parametrize("why", ["--no-open", "no display", "no terminal"])
def test_no_browser_is_opened(why: str, desktop: Desktop) -> None:
    arguments = [why] if why.startswith("--") else []
    display = None if why == "no display" else ":9"
    address = desktop.start(*arguments, in_terminal=why != "no terminal", DISPLAY=display)
    assert answers(address)
    # It would have been started before the first answer.
    time.sleep(0.2)
    desktop.stop()
    assert desktop.opened() == []


@pytest.mark.parametrize("browser", ["hangs", "fails", "is no program", "is absent"])
def test_browser_does_not_hold_up_the_portal(browser: str, desktop: Desktop) -> None:
    texts = {"hangs": f"{RECORDS}exec sleep 600\n", "fails": f"{RECORDS}exit 3\n", "is no program": "\0"}
    path = desktop.environment["PATH"]
    if browser in texts:
        desktop.install(texts[browser])
    else:
        (desktop.folder / "xdg-open").unlink()
        path = str(desktop.folder)
    address = desktop.start(PATH=path)
    assert answers(address)
    if browser in ("hangs", "fails"):
        assert wait_until(desktop.opened, "the browser") == [address]
    [portal] = desktop.portals
    desktop.stop()
    if browser == "hangs":
        os.killpg(portal.pid, signal.SIGKILL)
