"""Jobs that several tests look at, so that each of these tests runs none of its own."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import Workplace


@contextmanager
def workplace_of_a_module(factory: pytest.TempPathFactory, executable: Path) -> Iterator[Workplace]:
    """Yields a workplace for a fixture of module scope."""
    workplace = Workplace(factory.mktemp("shared"), executable, Path(sys.executable))
    try:
        yield workplace
    finally:
        workplace.kill_what_still_runs()


def copy_of(workplace: Workplace, job_id: str, other: str) -> Path:
    """Copies a job of this machine that has ended under another id, and returns the folder of the copy."""
    folder = workplace.home / "jobs" / other
    shutil.copytree(workplace.home / "jobs" / job_id, folder)
    for name in ("spec.json", "result.json", "progress.json"):
        file = folder / name
        if file.exists():
            file.write_text(file.read_text().replace(job_id, other))
    return folder
