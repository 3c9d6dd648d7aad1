"""Measures what old jobs cost: a job of one mini-batch, and `jobs`, with and without them in the home.

Usage: old_jobs.py [--jobs 20000] [--runs 21] [--keep-results]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from report import hardware, table

HERE = Path(__file__).resolve().parent
PAGE = HERE / "OLD_JOBS.md"
sys.path.insert(0, str(HERE.parent / "support"))
from old_job_folders import add_old_jobs  # noqa: E402

FILES = {
    "job.yaml": """\
name: tiny
entry_script: tiny.py
source_directory: code
inputs: [{name: data, type: file, path: data}]
mini_batch_size: 1
output: output
output_action: append_row
allow_reuse: false
process_count_per_node: 1
""",
    "code/tiny.py": "def run(files): return files\n",
    "data/a.txt": "a",
}
COMMANDS = {"run": ["run", "job.yaml"], "jobs": ["jobs", "--limit", "3"]}


class Home:
    """A folder with a job and a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in FILES.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        self.home = folder / "home"
        self.environment = {**os.environ, "GRISTMILL_HOME": str(self.home)}
        # The first job of a home checks the script and creates the folders.
        self.seconds("run")

    def seconds(self, command: str) -> float:
        """Returns the time of a command from start to exit."""
        arguments = [os.environ["GRISTMILL"], *COMMANDS[command]]
        began = time.perf_counter()
        subprocess.run(arguments, cwd=self.folder, env=self.environment, check=True, capture_output=True)
        return time.perf_counter() - began

    def add(self, count: int) -> None:
        """Adds old jobs, and lets a job index them."""
        (first,) = (self.home / "jobs").iterdir()
        add_old_jobs(self.home, first.name, count)
        (self.home / "index/complete").unlink()
        self.seconds("run")


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench old-jobs", description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=21, help="runs of each command in each home, which take turns")
    parser.add_argument("--keep-results", action="store_true", help=f"print only, leave {PAGE.name} as it is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-old-jobs-") as folder:
        empty, full = Home(Path(folder, "empty")), Home(Path(folder, "full"))
        full.add(options.jobs)
        pairs = {
            command: [(empty.seconds(command), full.seconds(command)) for _ in range(options.runs)]
            for command in COMMANDS
        }
    page = report(options.jobs, pairs)
    print(page)
    if not options.keep_results:
        PAGE.write_text(page)


def report(jobs: int, pairs: dict[str, list[tuple[float, float]]]) -> str:
    rows = []
    for command, times in pairs.items():
        without, beside = (statistics.median(side) for side in zip(*times, strict=True))
        ratio = statistics.median(beside / without for without, beside in times)
        rows.append(
            [f"`gristmill {' '.join(COMMANDS[command])}`", f"{without:.3f} s", f"{beside:.3f} s", f"{ratio:.2f}"]
        )
    runs = len(pairs["run"])
    machine = {"date": date.today(), **hardware()}
    return f"""# What old jobs cost

`scripts/bench old-jobs` writes this page. Two homes take turns: one with the jobs of this benchmark only, and one with
{jobs} old jobs besides, each with its own name and fingerprint. The job has one mini-batch. Times are medians of {runs}
runs from start to exit; the ratio is the median of the ratios of two runs in succession.

{table(("command", "new home", f"{jobs} old jobs", "ratio"), rows)}
{table(("", ""), machine.items())}"""


if __name__ == "__main__":
    main()
