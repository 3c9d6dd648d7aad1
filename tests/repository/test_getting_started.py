"""The first steps in infra/README.md run as they are written."""

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
def test_commands_of_the_page_run_a_job(shell, tmp_path):
    commands = "".join(re.findall(r"```sh\n(.*?)```", page(), flags=re.DOTALL))
    assert "gristmill enqueue" in commands
    # The trap stops the roles after any failure.
    ended = shell(f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{commands.replace(*BUILT)}")
    assert ended.returncode == 0, ended.stdout
    assert len((tmp_path / "first-job/output/parallel_run_step.txt").read_text().splitlines()) == 8
