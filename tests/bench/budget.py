"""Measures whether the limits of a job hold while its nodes are killed: four nodes, any of which dies at any moment.

The nodes share a folder and a queue in SQLite. A service on this machine writes down when each request arrived.

Usage: budget.py [--minutes 10] [--seed 1] [--keep-results]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE / "BUDGET.md"
sys.path.insert(0, str(HERE.parent / "support"))
from counted_service import CountedService  # noqa: E402

NODES = 4
PER_MINUTE = 600
EXCESS_MAX = 0.05
"""How far a minute may exceed the limit."""
BETWEEN_KILLS = (10, 40)
"""Seconds from one kill to the next: the least and the most."""
SCRIPT = """\
import asyncio, os
from urllib.request import urlopen

def ask(number):
    with urlopen(f"{os.environ['SERVICE']}/{number}") as answer:
        return answer.read().decode()

async def run_item(item):
    return await asyncio.to_thread(ask, item["number"])
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench budget", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1, help="decides who is killed, and when")
    parser.add_argument("--keep-results", action="store_true", help=f"print only, leave {PAGE.name} as it is")
    options = parser.parse_args()
    items = round(PER_MINUTE * options.minutes)
    with tempfile.TemporaryDirectory(prefix="bench-budget-") as folder, CountedService() as service:
        fleet = Fleet(Path(folder), service.url)
        rows, kills = fleet.run(items, random.Random(options.seed))
        page = report(items, service.times, rows, kills)
    print(page)
    check(items, service.times, rows)
    if not options.keep_results:
        PAGE.write_text(page)


class Fleet:
    """A target on this machine, in a folder of its own."""

    def __init__(self, folder: Path, service: str) -> None:
        self.folder = folder
        self.service = service
        (folder / "gristmill.toml").write_text(
            f'[targets.bench]\nqueue = "sqlite:{folder}/queue"\nstore = "file:{folder}/store"\n'
        )
        self.environment = {
            **os.environ,
            "GRISTMILL_CONFIG": str(folder / "gristmill.toml"),
            "GRISTMILL_TARGET": "bench",
            "GRISTMILL_HOME": str(folder / "home"),
            "GRISTMILL_LEASE_SECONDS": "10",
        }

    def run(self, items: int, chance: random.Random) -> tuple[list[str], int]:
        """Runs a job of this many requests. Returns the rows of its output, and how many nodes were killed."""
        (self.folder / "code").mkdir()
        (self.folder / "code/ask.py").write_text(SCRIPT)
        (self.folder / "numbers.csv").write_text("number\n" + "".join(f"{number}\n" for number in range(items)))
        job = {
            "name": "budget",
            "entry_script": "ask.py",
            "source_directory": "code",
            "inputs": [{"name": "numbers", "type": "tabular", "path": "numbers.csv"}],
            "mini_batch_size": "20 rows",
            "environment_variables": {"SERVICE": self.service},
            "limits": {"requests_per_minute": PER_MINUTE},
            "lost_delivery_max": 1000,
            "output": "output",
            "output_action": "append_row",
            "process_count_per_node": 1,
        }
        (self.folder / "job.yaml").write_text(json.dumps(job))
        with contextlib.ExitStack() as running:
            running.callback(end, self.start("reducer", "reducer"))
            nodes = [self.start("worker", f"node {number}", "--job-users", "none") for number in range(NODES)]
            running.callback(lambda: [end(node) for node in nodes])
            waiting = self.start("enqueue", "enqueue", str(self.folder / "job.yaml"), "--wait", "--json")
            running.callback(end, waiting)
            kills = 0
            while waiting.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    waiting.wait(chance.uniform(*BETWEEN_KILLS))
                    break
                number = chance.randrange(NODES)
                end(nodes[number])
                kills += 1
                nodes[number] = self.start("worker", f"node {number}", "--job-users", "none")
        result = json.loads((self.folder / "enqueue.txt").read_text().splitlines()[-1])
        if result.get("state") != "Completed":
            sys.exit(f"the job ended as {result}")
        return Path(result["output"]).read_text().split(), kills

    def start(self, role: str, name: str, *arguments: str) -> subprocess.Popen:
        with (self.folder / f"{name}.txt").open("ab") as printed, (self.folder / f"{name}.log").open("ab") as log:
            command = [os.environ["GRISTMILL"], role, *arguments]
            return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=printed, stderr=log)


def end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


def most_in_a_minute(times: list[float]) -> int:
    most, first = 0, 0
    for last, now in enumerate(times):
        while now - times[first] >= 60:
            first += 1
        most = max(most, last - first + 1)
    return most


def check(items: int, times: list[float], rows: list[str]) -> None:
    """Ends with status 1 if the limit was exceeded, or a row is missing or doubled."""
    most = most_in_a_minute(sorted(times))
    if most > PER_MINUTE * (1 + EXCESS_MAX):
        sys.exit(f"{most} requests in one minute are more than {EXCESS_MAX:.0%} above the limit, {PER_MINUTE}")
    if not are_whole(items, rows):
        sys.exit(f"the output has {len(rows)} rows, which are not those of {items} items")


def are_whole(items: int, rows: list[str]) -> bool:
    return rows == [str(number) for number in range(items)]


def report(items: int, times: list[float], rows: list[str], kills: int) -> str:
    times = sorted(times)
    seconds = times[-1] - times[0]
    most = most_in_a_minute(times)
    lines = [
        "# A budget of requests while nodes are killed",
        "",
        f"Written by `scripts/bench budget`, {date.today().isoformat()}: {NODES} nodes, of which {kills} were killed "
        f"(SIGKILL) and",
        "replaced at random moments; `limits: {requests_per_minute: " + str(PER_MINUTE) + "}`.",
        "",
        "| | |",
        "|---|---|",
        f"| items | {items:,} |",
        f"| rows in the output, each once and in order | {f'{len(rows):,}' if are_whole(items, rows) else 'NO'} |",
        f"| requests (those of killed nodes are repeated) | {len(times):,} |",
        f"| time from the first request to the last | {seconds:.0f} s |",
        f"| the most requests in any minute | {most} ({100 * most / PER_MINUTE - 100:+.1f} % of the limit) |",
        f"| of the budget used | {100 * len(times) / (PER_MINUTE / 60 * seconds):.0f} % |",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
