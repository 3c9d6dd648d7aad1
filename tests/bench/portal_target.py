"""How long the portal takes to show a compute target with many open jobs."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from portal_pages import browse

SCRIPT = "import time\ndef run(files):\n    time.sleep(3600)\n"
TARGET = "bench"
# The page lists the roles of this many open jobs.
SERVED = 100
FILE = "progress.json"
WAIT_SECONDS = 120
ROUNDS = 5
PAGES = [("target", "target", "main table tbody tr"), ("jobs of the target", "", "table.jobs a.name")]


@dataclass
class TargetLooks:
    """What it takes to look at a target."""

    jobs: int
    answers: list[float]
    """Seconds of each answer; the first one opens the queues."""
    size: int
    """Bytes of an answer."""
    pages: dict[str, float]
    """Seconds until each page is complete."""


def look_at_target(executable: str, python: str, jobs: int) -> TargetLooks:
    """Enqueues jobs in a folder, lets a reducer serve one of them, and shows their target.

    The schedule admits only as many jobs as there are processes, so the other jobs get the progress of that one.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "code").mkdir()
        (place / "data").mkdir()
        (place / "code/entry.py").write_text(SCRIPT)
        (place / "data/one.txt").write_text("1")
        (place / "gristmill.toml").write_text(
            f'[targets.{TARGET}]\nqueue = "sqlite:target/queues"\nstore = "target/store"\n'
        )
        job = {
            "name": "open",
            "entry_script": "entry.py",
            "source_directory": "code",
            "inputs": [{"name": "data", "type": "file", "path": "data"}],
            "mini_batch_size": 1,
            "output_action": "summary_only",
            "allow_reuse": False,
        }
        (place / "job.yaml").write_text(json.dumps(job))
        environment = {**os.environ, "GRISTMILL_HOME": str(place / "home"), "GRISTMILL_PYTHON": python}

        def start(*arguments: str) -> subprocess.Popen[str]:
            command = [executable, *arguments, "--target", TARGET]
            return subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.PIPE, text=True)

        for _ in range(jobs):
            enqueued = start("enqueue", "job.yaml", "--quiet")
            enqueued.communicate()
            assert enqueued.returncode == 0, "a job was not enqueued"
        portal = start("portal", "--no-open", "--listen", "127.0.0.1:0")
        roles = [portal]
        try:
            printed = portal.stdout.readline().strip()
            fleet = [start("reducer"), start("worker", "--process-count", "1", "--job-users", "none")]
            folders = sorted((place / "target/store/jobs").iterdir())
            end = time.monotonic() + WAIT_SECONDS
            while not (served := [folder / FILE for folder in folders if (folder / FILE).exists()]):
                assert time.monotonic() < end, "the reducer serves no job"
                time.sleep(1)
            for role in fleet:
                role.kill()
                role.wait()
            for folder in folders:
                if not (folder / FILE).exists():
                    shutil.copy(served[0], folder / FILE)
            assert len(get(printed)[1]["reducers"]) == min(jobs, SERVED)
            answers = []
            size = 0
            for _ in range(ROUNDS):
                began = time.perf_counter()
                size, _ = get(printed)
                answers.append(time.perf_counter() - began)
            pages, _ = browse(printed, PAGES, rest=("#/jobs/none", "text=There is no job"))
            return TargetLooks(jobs, answers, size, pages)
        finally:
            for role in roles:
                role.terminate()
                role.wait()


def get(printed: str) -> tuple[int, dict]:
    """Returns the target as the portal shows it, and the bytes of the answer."""
    address = urllib.parse.urlsplit(printed)
    token = urllib.parse.parse_qs(address.query)["token"][0]
    url = f"http://{address.netloc}/api/v1/target"
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        body = answer.read()
    return len(body), json.loads(body)


def row(looks: TargetLooks) -> str:
    """Its row in the table of answers."""
    times = f"{statistics.median(looks.answers):.3f} s | {max(looks.answers):.3f} s"
    return f"| target with {looks.jobs} open jobs | {times} | {looks.size:,} |"
