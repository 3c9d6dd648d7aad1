"""Links of documents resolve."""

import re
import subprocess
from pathlib import Path

import pytest

from harness import ROOT

DOCUMENTS = sorted(
    Path(name)
    for name in subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.splitlines()
    if (ROOT / name).exists()
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Returns the anchors of the headings, as GitHub derives them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_resolve(document):
    for link in LINK.findall(CODE.sub("", (ROOT / document).read_text())):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        page = (ROOT / document).parent / path if path else ROOT / document
        assert page.exists(), f"{document} links to {link}, which does not exist"
        assert not anchor or anchor in anchors(page), f"{document} links to {link}, which has no such heading"
