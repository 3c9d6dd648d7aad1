"""The progress of a job of a target, in its store: a wait for it starts no processes."""

from __future__ import annotations

import json
from typing import Any

from targets import Target


def progress_on(target: Target, job_id: str) -> dict[str, Any]:
    """Returns the latest progress; an empty object before the first."""
    [text] = target.objects(f"jobs/{job_id}/progress.json").values() or [b"{}"]
    progress: dict[str, Any] = json.loads(text)
    return progress
