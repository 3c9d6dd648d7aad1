"""Measures jobs that go through a queue: throughput compared with common alternatives, and reaction times of a fleet.

Throughput is compared with Celery on the same RabbitMQ, whose worker is already running, and with a boto3 loop on the
same SQS that receives and deletes existing messages. Sides alternate; figures are medians.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import crowd
from data import small_files
from report import commit, keeping_section, machine_table, table, with_section
from workloads import count_lines, files_at, write_job

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"
sys.path.insert(0, str(HERE.parent / "support"))
from counting_proxy import STORE, CountingProxy  # noqa: E402
from harness import is_alive, wait_until  # noqa: E402

PAGE = HERE / "FLEET.md"
LONE = "What fairness costs a job that is alone"
"""The section of `--beside`, which the page keeps otherwise."""
PROCESSES = 2
LARGE_JOBS = 5
"""Jobs that have all processes while a small one comes."""
IDLE_SECONDS = 4
COUNTED_SECONDS = 60


class Target:
    """A fresh target: queues and a store prefix of its own."""

    def __init__(self, kind: str, folder: Path, endpoint: str, amqp: str, executable: str = "") -> None:
        self.kind = kind
        self.folder = folder
        self.executable = executable or os.environ["GRISTMILL"]
        prefix = f"bench-{uuid.uuid4().hex[:12]}"
        queue = f"sqs://{prefix}" if kind == "SQS" else f"{amqp}?prefix={prefix}"
        self.config = folder / "gristmill.toml"
        self.config.write_text(
            f'[targets.bench]\nqueue = "{queue}"\nstore = "s3://{prefix}"\nendpoint = "{endpoint}"\n'
        )
        self.environment = {
            **os.environ,
            "GRISTMILL_CONFIG": str(self.config),
            "GRISTMILL_TARGET": "bench",
            "GRISTMILL_HOME": str(folder / "home"),
            "RECORD": str(folder / "record"),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }
        self.run("doctor", "--create")

    def command(self, *arguments: str) -> list[str]:
        return [self.executable, *arguments]

    def run(self, *arguments: str) -> str:
        """Runs one command to its end and returns its output. A failure ends the benchmark."""
        ended = subprocess.run(self.command(*arguments), env=self.environment, capture_output=True, text=True)
        if ended.returncode != 0:
            sys.exit(
                f"gristmill {' '.join(arguments)}: {ended.returncode}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
            )
        return ended.stdout

    @contextlib.contextmanager
    def roles(self, workers: int) -> Iterator[list[subprocess.Popen]]:
        """Runs workers and a reducer, and kills them at the end."""
        with (self.folder / "roles.txt").open("wb") as log:
            start = lambda *arguments: subprocess.Popen(  # noqa: E731
                self.command(*arguments), env=self.environment, stdout=log, stderr=log
            )
            reducer = start("reducer")
            nodes = [start("worker", "--job-users", "none") for _ in range(workers)]
            try:
                yield nodes
            finally:
                for process in [*nodes, reducer]:
                    process.kill()
                    process.wait()

    def write_job(
        self, data: Path, script: str = "return_input", run_seconds: float = 0, processes: int = PROCESSES
    ) -> Path:
        """Writes the job file and returns its path."""
        variables = {"RECORD": str(self.folder / "record"), "RUN_SECONDS": str(run_seconds)}
        settings = {"process_count_per_node": processes, "environment_variables": variables}
        return write_job(self.folder, script, files_at(data), mini_batch_size=1, **settings)

    def records(self) -> list[tuple[str, int, int, float]]:
        """Returns every start of `run`: file, process, node, time."""
        record = self.folder / "record"
        lines = record.read_text().splitlines() if record.exists() else []
        fields = (line.split() for line in lines)
        return [(file, int(process), int(node), float(at)) for file, process, node, at in fields]


def check_rows(target: Target, count: int) -> None:
    if (found := count_lines(target.folder / "rows")) != count:
        sys.exit(f"{count} rows were due, and there are {found}")


def whole_run(target: Target, data: Path, count: int) -> float:
    """Returns the seconds of one command that starts, plans, publishes, runs and writes the output."""
    job = target.write_job(data)
    started = time.perf_counter()
    target.run("run", str(job))
    seconds = time.perf_counter() - started
    check_rows(target, count)
    return seconds


def work_off(target: Target, data: Path, count: int) -> float:
    """Returns the seconds from the start of a worker and a reducer until the output of a planned job exists."""
    target.run("enqueue", str(target.write_job(data)))
    started = time.perf_counter()
    with target.roles(workers=1):
        wait_until((target.folder / "rows").exists, "the output")
        seconds = time.perf_counter() - started
    check_rows(target, count)
    return seconds


def peer(*command: str) -> float:
    """Returns the seconds that the other side measures itself."""
    printed = subprocess.run((sys.executable, *command), check=True, stdout=subprocess.PIPE, text=True)
    return float(printed.stdout.splitlines()[0])


def alternate(rounds: int, *sides: Callable[[], float]) -> list[float]:
    """Returns the medians of all sides, which take turns."""
    seconds: list[list[float]] = [[] for _ in sides]
    for number in range(rounds):
        turns = list(zip(seconds, sides, strict=True))
        for times, side in turns if number % 2 == 0 else turns[::-1]:
            times.append(side())
            print(f"round {number + 1}: {times[-1]:.1f} s", file=sys.stderr, flush=True)
    return [statistics.median(times) for times in seconds]


def takeover(target: Target, data: Path) -> float:
    """Returns the seconds from SIGKILL of one of two workers until its mini-batches run on the other."""
    job = target.write_job(data, "record_start", run_seconds=1)
    with target.roles(workers=2) as nodes:
        target.run("enqueue", str(job))
        wait_until(lambda: len({node for _, _, node, _ in target.records()}) == 2, "both workers work")
        killed = nodes[0].pid
        at_kill = time.time()
        os.kill(killed, signal.SIGKILL)
        held = {file for file, _, node, at in target.records() if node == killed and at > at_kill - 1}

        def taken_over() -> float | None:
            again = {file: at for file, _, node, at in target.records() if node != killed and at > at_kill}
            return max(again[file] for file in held) if held and held <= again.keys() else None

        return float(wait_until(taken_over, "the other worker runs them")) - at_kill


def cancellation(target: Target, data: Path) -> float:
    """Returns the seconds from the command `cancel` until three workers run no process of the job."""
    job = target.write_job(data, "record_start", run_seconds=60)
    with target.roles(workers=3):
        job_id = target.run("enqueue", str(job)).split()[0]
        wait_until(lambda: len({node for _, _, node, _ in target.records()}) == 3, "three workers work")
        started = time.perf_counter()
        target.run("cancel", job_id)
        processes = {process for _, process, _, _ in target.records()}
        wait_until(lambda: not any(map(is_alive, processes)), "all processes end")
        return time.perf_counter() - started


def first_run(target: Target, data: Path) -> float:
    """Returns the seconds from the end of `enqueue` to the first run, where a worker and a reducer are idle."""
    with target.roles(workers=1):
        time.sleep(IDLE_SECONDS)
        target.run("enqueue", str(target.write_job(data, "record_start")))
        enqueued = time.time()
        wait_until(target.records, "the first run")
        return target.records()[0][3] - enqueued


def small_beside_large(target: Target, data: Path, few: Path) -> tuple[float, float]:
    """Returns the seconds from `enqueue` of a small job to its first run and to its output.

    Large jobs have all processes of three workers."""
    large = []
    for number in range(LARGE_JOBS):
        folder = target.folder / f"large-{number}"
        folder.mkdir()
        settings = {
            "process_count_per_node": PROCESSES,
            "environment_variables": {"RECORD": str(folder / "record"), "RUN_SECONDS": "0.2"},
        }
        large.append((folder, write_job(folder, "record_start", files_at(data), name=f"large-{number}", **settings)))
    with target.roles(workers=3):
        for _, file in large:
            target.run("enqueue", str(file))
        wait_until(lambda: all((folder / "record").exists() for folder, _ in large), "runs of every large job")
        time.sleep(IDLE_SECONDS)
        started = time.time()
        target.run("enqueue", str(target.write_job(few, "record_start", run_seconds=0.2)))
        output = target.folder / "rows"
        wait_until(output.exists, "the output of the small job")
        return target.records()[0][3] - started, output.stat().st_mtime - started


def idle_requests(target_through: Callable[[str], Target], endpoint: str) -> dict[str, float]:
    """Returns the requests to SQS and S3 in an hour of one idle worker and one idle reducer, by kind."""
    with CountingProxy(endpoint) as proxy:
        target = target_through(proxy.url)
        with target.roles(workers=1):
            time.sleep(IDLE_SECONDS)
            proxy.counts.clear()
            time.sleep(COUNTED_SECONDS)
            counts = dict(proxy.counts)
    named = {f"S3 {kind}" if kind in STORE else f"SQS {kind}": number for kind, number in counts.items()}
    return {kind: number * 3600 / COUNTED_SECONDS for kind, number in sorted(named.items())}


def requests(target_through: Callable[[str], Target], endpoint: str, data: Path, count: int) -> dict[str, float]:
    """Returns the requests to SQS and S3 per 1 000 mini-batches, by kind."""
    with CountingProxy(endpoint) as proxy:
        target = target_through(proxy.url)
        proxy.counts.clear()
        target.run("run", str(target.write_job(data)))
        counts = {f"S3 {kind}" if kind in STORE else f"SQS {kind}": number for kind, number in proxy.counts.items()}
    return {kind: number * 1000 / count for kind, number in sorted(counts.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder for data, kept for the next run")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep-results", action="store_true", help="print only, leave FLEET.md as it is")
    parser.add_argument("--beside", default="", help="another build of gristmill: only compares a job that is alone")
    options = parser.parse_args()
    endpoint, amqp = os.environ["GRISTMILL_TEST_AWS_ENDPOINT"], os.environ["GRISTMILL_TEST_AMQP_URL"]
    count = max(100, round(20_000 * options.scale))
    data, few, ten = (small_files(options.data, number) for number in (count, 200, 10))
    work = options.data / "fleet"
    shutil.rmtree(work, ignore_errors=True)

    def new_target(kind: str, endpoint: str = endpoint, executable: str = "") -> Target:
        folder = work / uuid.uuid4().hex
        folder.mkdir(parents=True)
        return Target(kind, folder, endpoint, amqp, executable)

    work.mkdir(parents=True, exist_ok=True)
    lines = ["| workload | gristmill | other | ratio |", "|---|---|---|---|"]

    def rate(seconds: float) -> str:
        return f"{seconds:.1f} s ({count / seconds:,.0f}/s)"

    def compare(title: str, ours: float, name: str, theirs: float) -> None:
        lines.append(f"| {title} | {rate(ours)} | {name}: {rate(theirs)} | {theirs / ours:.1f} |")
        print(lines[-1], flush=True)

    title = f"{count:,} mini-batches through"
    if options.beside:
        lone = []
        for kind in ("RabbitMQ", "SQS"):
            sides = [functools.partial(new_target, kind, executable=build) for build in ("", options.beside)]
            runs = [functools.partial(lambda side: whole_run(side(), data, count), side) for side in sides]
            ours, theirs = alternate(options.rounds, *runs)
            lone.append((f"{title} {kind}", rate(ours), rate(theirs), f"{ours / theirs - 1:+.1%}"))
            print(*lone[-1], flush=True)
        shutil.rmtree(work, ignore_errors=True)
        section = lone_section(lone, options)
        print(f"\n{section}")
        if not options.keep_results:
            PAGE.write_text(with_section(PAGE.read_text(), LONE, section))
        return
    rabbit, celery = alternate(
        options.rounds,
        lambda: whole_run(new_target("RabbitMQ"), data, count),
        lambda: peer(str(PEERS / "celery_side.py"), amqp, str(data), str(work / "celery.rows"), str(PROCESSES)),
    )
    compare(f"{title} RabbitMQ, the whole command", rabbit, "Celery", celery)
    whole, worked_off, boto = alternate(
        options.rounds,
        lambda: whole_run(new_target("SQS"), data, count),
        lambda: work_off(new_target("SQS"), data, count),
        lambda: peer(str(PEERS / "boto_side.py"), endpoint, str(count)),
    )
    compare(f"{title} SQS, once they are planned", worked_off, "boto3 loop", boto)
    compare(f"{title} SQS, the whole command", whole, "boto3 loop", boto)

    lines += ["", "| reaction | RabbitMQ | SQS |", "|---|---|---|"]
    for title, measure in (
        ("end of `enqueue` until the first run, on an idle fleet", first_run),
        ("SIGKILL of a worker until its mini-batches run elsewhere", takeover),
        ("`gristmill cancel` until three workers have stopped", cancellation),
    ):
        seconds = [
            statistics.median(measure(new_target(kind), few) for _ in range(options.rounds))
            for kind in ("RabbitMQ", "SQS")
        ]
        lines.append(f"| {title} | {seconds[0]:.1f} s | {seconds[1]:.1f} s |")
        print(lines[-1], flush=True)

    beside = [
        [statistics.median(times) for times in zip(*runs, strict=True)]
        for runs in (
            [small_beside_large(new_target(kind), data, ten) for _ in range(options.rounds)]
            for kind in ("RabbitMQ", "SQS")
        )
    ]
    for number, what in enumerate(("first run", "output")):
        title = f"start of `enqueue` of ten mini-batches of 0.2 s until the {what}, beside {LARGE_JOBS} large jobs"
        lines.append(f"| {title} | {beside[0][number]:.1f} s | {beside[1][number]:.1f} s |")
        print(lines[-1], flush=True)

    lines += ["", "| requests per 1 000 mini-batches of one file (SQS and S3) | |", "|---|---|"]
    counted = requests(lambda url: new_target("SQS", url), endpoint, data, count)
    lines += [f"| {kind} | {number:.1f} |" for kind, number in counted.items()]
    lines += ["", "| requests in an hour of one idle worker and one idle reducer | |", "|---|---|"]
    idle = idle_requests(lambda url: new_target("SQS", url), endpoint)
    lines += [f"| {kind} | {number:,.0f} |" for kind, number in idle.items()]
    lines += ["", crowd.section(new_target, options.data, options.scale)]
    shutil.rmtree(work, ignore_errors=True)

    tables = "\n".join(lines)
    print(f"\n{tables}")
    if not options.keep_results:
        PAGE.write_text(keeping_section(report(tables, options), LONE, PAGE))


def lone_section(rows: list[tuple[str, ...]], options: argparse.Namespace) -> str:
    version = subprocess.run([options.beside, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    return f"""`scripts/bench fleet --beside EXECUTABLE` writes this section, where the executable is a build in which
jobs do not share workers ({version}). Both builds run the whole command on the same brokers and take turns; each figure
is a median (rounds: {options.rounds}). *Cost*: above 0, this build is slower.

{table(("", "this build", "other build", "cost"), rows)}
Commit {commit()}, {time.strftime("%Y-%m-%d")}."""


def report(tables: str, options: argparse.Namespace) -> str:
    return f"""# How fast through a queue

`scripts/bench fleet` writes this page. Both brokers, the store and all roles share one small machine, so look at the
ratios: a real fleet has other times. RabbitMQ is Debian's, with quorum queues; SQS and S3 are LocalStack. Each figure
is a median of release builds (rounds: {options.rounds}) with {PROCESSES} Python processes. *The whole command*
starts, plans, publishes, runs and writes the one ordered file; *once they are planned* is from the start of a worker
and a reducer to that file. Celery acknowledges late and returns results, and its worker starts before its clock; the
boto3 loop only receives and deletes existing messages. *Ratio*: above 1, gristmill is faster.

{tables}

{machine_table(options.scale)}"""


if __name__ == "__main__":
    main()
