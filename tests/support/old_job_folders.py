"""Old jobs, written without running them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def add_old_jobs(home: Path, like: str, count: int, **spec: Any) -> None:
    """Creates copies of a job, each with its own fingerprint, name and output, unless `spec` sets them."""
    jobs = home / "jobs"
    documents = {name: json.loads((jobs / like / name).read_text()) for name in ("spec.json", "result.json")}
    plan = (jobs / like / "plan/complete.json").read_text()
    for number in range(count):
        own = {"fingerprint": f"{number:064x}", "name": f"old-{number}", **spec}
        time = f"{number // 3600 % 24:02}{number // 60 % 60:02}{number % 60:02}"
        own["job_id"] = job_id = f"{own['name']}-20200101-{time}-{number:04x}"
        (jobs / job_id / "plan").mkdir(parents=True)
        output = {**documents["spec.json"]["output"], "folder": f"/nowhere/{number}"}
        spec_json = {**documents["spec.json"], "output": output, **own}
        (jobs / job_id / "spec.json").write_text(json.dumps(spec_json))
        (jobs / job_id / "result.json").write_text(json.dumps({**documents["result.json"], "job_id": job_id}))
        (jobs / job_id / "plan/complete.json").write_text(plan)
        (jobs / job_id / "lock").touch()
