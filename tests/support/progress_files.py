"""The progress of a job, in the file that `gristmill status` shows: a wait for it starts no processes."""

from __future__ import annotations

import json
from typing import Any

from harness import Workplace


def progress_of(workplace: Workplace, job_id: str) -> dict[str, Any]:
    """Returns the latest progress; an empty object before the first."""
    file = workplace.home / "jobs" / job_id / "progress.json"
    progress: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return progress


def ended_mini_batches(workplace: Workplace, job_id: str) -> int:
    """Returns how many mini-batches have succeeded or failed."""
    counts = progress_of(workplace, job_id).get("mini_batches", {})
    return counts.get("succeeded", 0) + counts.get("failed", 0)
