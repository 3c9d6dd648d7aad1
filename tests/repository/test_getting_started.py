"""The first steps in infra/README.md: runs the commands in order and compares the form of their output."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from components import is_free, shifted
from harness import ROOT

# The executable exists already, and other tests use it.
BUILT = ("$(scripts/build --quick | tail -n 1)", "$GRISTMILL_BUILT")


def page() -> str:
    """Returns the half that needs no account."""
    text = (ROOT / "infra/README.md").read_text()
    section = text.partition("## LocalStack first, then AWS\n")[2].partition("\n## ")[0]
    return section.partition("### On this machine\n")[2].partition("\n### ")[0]


def blocks() -> list[tuple[str, list[str]]]:
    """Returns the commands, each with lines of its output."""
    found = re.findall(r"```sh\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", page(), flags=re.DOTALL)
    return [(commands, printed.splitlines()) for commands, printed in found]


def shape(line: str) -> str:
    """Returns a line without the parts that vary between runs: numbers, ids, names of nodes."""
    line = re.sub(r"count-\d{8}-\d{6}-[0-9a-f]{16}", "JOB", line)
    line = re.sub(r"^(worker|reducer) \S+", r"\1 NODE", line)
    return re.sub(r" +", " ", re.sub(r"\d+(\.\d+)?", "0", line)).strip()


@pytest.fixture
def shell(tmp_path, workplace):
    """Yields a function that runs bash with a separate home and a free port for LocalStack."""
    shift = next(shift for shift in range(2000, 9000, 10) if all(map(is_free, shifted(shift, "localstack"))))
    cache = os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GRISTMILL", "AWS_"))}
    environment = {
        **kept,
        "HOME": str(tmp_path),
        "USER": "ada",
        "XDG_CACHE_HOME": str(cache),
        "GRISTMILL_BUILT": str(workplace.executable),
        "GRISTMILL_PYTHON": sys.executable,
        "GRISTMILL_COMPONENTS": str(tmp_path / ".cache/gristmill/components"),
        "GRISTMILL_PORT_SHIFT": str(shift),
    }
    yield lambda script: subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    subprocess.run([ROOT / "scripts/down"], env=environment, check=True, capture_output=True)


@pytest.mark.timeout(600)
def test_page_commands_print_the_documented_output(shell, tmp_path):
    parts = blocks()
    assert len(parts) >= 6 and sum(bool(printed) for _, printed in parts) >= 4
    script = "".join(f"{commands.replace(*BUILT)}\necho '<<< end of block'\n" for commands, _ in parts)
    # The trap stops the roles after any failure.
    ended = shell(f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}")
    assert ended.returncode == 0, ended.stdout
    outputs = ended.stdout.split("<<< end of block\n")
    for (commands, expected), output in zip(parts, outputs, strict=False):
        lines = iter(map(shape, output.splitlines()))
        for line in expected:
            assert shape(line) in lines, f"{line!r} is not printed there, or not in this order:\n{commands}\n{output}"
    assert len((tmp_path / "first-job/output/parallel_run_step.txt").read_text().splitlines()) == 8
