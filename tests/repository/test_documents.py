"""Documents: every link resolves, no line of text stands twice, and the page of commands lists every command and
environment variable.
"""

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


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_no_line_of_text_stands_twice(document):
    """A merge has put lines of one paragraph over those of another."""
    lines = re.sub(r"```.*?```", "", (ROOT / document).read_text(), flags=re.DOTALL).splitlines()
    long = [line for line in lines if len(line) > 60 and not line.startswith("|")]
    assert not {line for line in long if long.count(line) > 1}


def test_commands_page_lists_every_command(workplace):
    page = (ROOT / "services/cli/COMMANDS.md").read_text()
    listed = workplace.command("--help").stdout.partition("Commands:\n")[2].partition("\n\n")[0]
    commands = re.findall(r"^  ([a-z-]+) ", listed, re.MULTILINE)
    assert len(commands) > 10
    for command in commands:
        assert command == "help" or f"gristmill {command}" in page, command


def test_commands_page_lists_every_environment_variable():
    """`PATH`, `HOME`, `VIRTUAL_ENV` and those of AWS and OpenTelemetry need no explanation there."""
    sources = [(ROOT / "services/cli/src" / name).read_text() for name in ("settings.rs", "complete.rs")]
    page = (ROOT / "services/cli/COMMANDS.md").read_text()
    section = page.partition("## Environment variables\n")[2].partition("\n## ")[0]
    read = {name for source in sources for name in re.findall(r'"([A-Z][A-Z_]+[A-Z])"', source)}
    usual = {name for name in read if name in ("PATH", "HOME", "VIRTUAL_ENV") or name.startswith(("AWS_", "OTEL_"))}
    assert read - usual == set(re.findall(r"`([A-Z][A-Z_]+[A-Z])`", section)) - usual
