"""Takes the screenshots of the portal's pages: `python screenshots.py FOLDER`."""

import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from page_client import COMPLETED, FAILED, MILLION, RUNNING
from stand_in import StandIn

# Name, page, width, theme.
SHOTS = [
    ("jobs", "", 1440, "light"),
    ("job-failed", f"jobs/{FAILED}", 1440, "light"),
    ("job-running", f"jobs/{RUNNING}", 1440, "dark"),
    ("mini-batches", f"jobs/{FAILED}/mini-batches", 1440, "light"),
    ("mini-batches-million", f"jobs/{MILLION}/mini-batches", 1440, "dark"),
    ("mini-batches-duration", f"jobs/{COMPLETED}/mini-batches?by=duration", 1440, "light"),
    ("mini-batch", f"jobs/{FAILED}/mini-batches/30", 1440, "light"),
    ("timeline", f"jobs/{FAILED}/timeline", 1440, "light"),
    ("nodes", f"jobs/{FAILED}/nodes", 1440, "light"),
    ("logs", f"jobs/{FAILED}/logs?path=user%2Fstdout%2F0%2Fprocess001.stdout.txt", 1440, "dark"),
    ("output", f"jobs/{COMPLETED}/output", 1440, "light"),
    ("target", "target", 1440, "light"),
    ("phone-job", f"jobs/{FAILED}", 360, "light"),
    ("phone-mini-batches", f"jobs/{FAILED}/mini-batches", 360, "dark"),
]


def take(browser: Browser, address: str, folder: Path, name: str, place: str, width: int, scheme: str) -> None:
    height = 900 if width > 500 else 760
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, timezone_id="UTC")
    page = context.new_page()
    page.goto(f"{address}#/{place}")
    page.locator("main h1").wait_for()
    # The event stream stays open, so the network is never idle; charts are drawn within this time.
    page.wait_for_timeout(1200)
    page.screenshot(path=folder / f"{name}.png", animations="disabled")
    context.close()


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    server = StandIn().start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium-headless-shell"), args=["--no-sandbox"]
        )
        for shot in SHOTS:
            take(browser, server.address, folder, *shot)
        browser.close()
    # Flat colours: 256 of them are enough, and the repository keeps every version.
    subprocess.run(["pngquant", "--force", "--ext", ".png", "--strip", *folder.glob("*.png")], check=True)
    for file in sorted(folder.glob("*.png")):
        print(f"{file.name}: {file.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
