"""What the benchmark measures of a fleet: jobs through RabbitMQ and SQS, how soon a fleet reacts, and its requests.

Brokers and store run on this machine: RabbitMQ, and LocalStack for SQS and S3. The slow node's target is a folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from measure import Figures, measure
from workloads import (
    HERE,
    Side,
    Workload,
    count_lines,
    executable,
    files_at,
    same_bytes,
    scaled,
    small_files,
    write_job,
)

sys.path.insert(0, str(HERE.parent / "support"))
from counting_proxy import CountingProxy
from harness import is_alive, wait_until

KINDS = ("RabbitMQ", "SQS")
PROCESSES = 2
# Jobs that have all processes while a small one comes.
LARGE_JOBS = 5
IDLE_SECONDS = 4
COUNTED_SECONDS = 60
SLOW_NODES, SLOW_MINI_BATCHES, SLOW_SECONDS, SLOWER = 4, 200, 0.2, 100


class Target:
    """A target with queues and a store prefix of its own, or in its folder."""

    def __init__(self, kind: str, folder: Path, endpoint: str = "") -> None:
        self.folder = folder
        endpoint = endpoint or os.environ.get("GRISTMILL_TEST_AWS_ENDPOINT", "")
        prefix = f"bench-{uuid.uuid4().hex[:12]}"
        queue, store = {
            "SQS": (f"sqs://{prefix}", f"s3://{prefix}"),
            "RabbitMQ": (f"{os.environ.get('GRISTMILL_TEST_AMQP_URL')}?prefix={prefix}", f"s3://{prefix}"),
            "folder": ("sqlite:queues", "store"),
        }[kind]
        address = "" if kind == "folder" else f'endpoint = "{endpoint}"\n'
        config = folder / "gristmill.toml"
        config.write_text(f'[targets.bench]\nqueue = "{queue}"\nstore = "{store}"\n{address}')
        self.environment = {
            "GRISTMILL_CONFIG": str(config),
            "GRISTMILL_TARGET": "bench",
            "GRISTMILL_HOME": str(folder / "home"),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }
        self.run("doctor", "--create")

    def run(self, *arguments: str) -> str:
        """Runs one command to its end and returns its output. A failure ends the benchmark."""
        command = [executable(), *arguments]
        ended = subprocess.run(
            command, cwd=self.folder, env=os.environ | self.environment, capture_output=True, text=True
        )
        if ended.returncode != 0:
            sys.exit(f"{' '.join(command)}: {ended.returncode}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")
        return ended.stdout

    @contextlib.contextmanager
    def roles(self, workers: int) -> Iterator[list[subprocess.Popen]]:
        """Runs a reducer and workers, and kills them at the end."""
        with (self.folder / "roles.txt").open("wb") as log, contextlib.ExitStack() as running:

            def start(*arguments: str) -> subprocess.Popen:
                environment = os.environ | self.environment
                role = subprocess.Popen(
                    [executable(), *arguments], cwd=self.folder, env=environment, stdout=log, stderr=log
                )
                running.callback(role.wait)
                running.callback(role.kill)
                return role

            start("reducer")
            yield [start("worker", "--job-users", "none") for _ in range(workers)]

    def write_job(self, data: Path, script: str = "return_input", run_seconds: float = 0, name: str = "bench") -> Path:
        """Writes a job file into a folder of its name, and returns its path."""
        variables = {"RECORD": str(self.folder / f"{name}.record"), "RUN_SECONDS": str(run_seconds)}
        settings = {"process_count_per_node": PROCESSES, "environment_variables": variables, "mini_batch_size": 1}
        folder = self.folder / name
        folder.mkdir()
        return write_job(folder, script, files_at(data), name=name, **settings)

    def records(self, name: str = "bench") -> list[tuple[str, int, int, float]]:
        """Returns every start of `run` of a job: file, process, node, time."""
        record = self.folder / f"{name}.record"
        lines = record.read_text().splitlines() if record.exists() else []
        fields = (line.split() for line in lines)
        return [(file, int(process), int(node), float(at)) for file, process, node, at in fields]

    def nodes(self) -> set[int]:
        """Returns the workers that have begun to run mini-batches."""
        return {node for _, _, node, _ in self.records()}


def through(kind: str, data: Path, folder: Path) -> Figures:
    """Measures a command that starts, plans, publishes, runs and writes the output."""
    target = Target(kind, folder)
    job = target.write_job(data)
    figures = measure([executable(), "run", str(job)], folder, target.environment)
    (folder / "bench" / "rows").rename(folder / "rows")
    return figures


def peer(*command: str) -> Side:
    """Returns a side that measures itself."""
    script = [sys.executable, str(HERE / "peers" / command[0])]
    return lambda folder: measure([*script, *command[1:], str(folder / "rows")], folder, prints_figures=True)


def first_run(data: Path, target: Target) -> float:
    """Returns the seconds from the end of `enqueue` to the first run, where a worker and a reducer are idle."""
    with target.roles(workers=1):
        time.sleep(IDLE_SECONDS)
        target.run("enqueue", str(target.write_job(data, "record_start")))
        enqueued = time.time()
        wait_until(target.records, "the first run")
        return target.records()[0][3] - enqueued


def takeover(data: Path, target: Target) -> float:
    """Returns the seconds from SIGKILL of one of two workers until its mini-batches run on the other."""
    job = target.write_job(data, "record_start", run_seconds=1)
    with target.roles(workers=2) as nodes:
        target.run("enqueue", str(job))
        wait_until(lambda: len(target.nodes()) == 2, "both workers work")
        killed = nodes[0].pid
        at_kill = time.time()
        os.kill(killed, signal.SIGKILL)
        held = {file for file, _, node, at in target.records() if node == killed and at > at_kill - 1}

        def taken_over() -> float | None:
            again = {file: at for file, _, node, at in target.records() if node != killed and at > at_kill}
            return max(again[file] for file in held) if held and held <= again.keys() else None

        return float(wait_until(taken_over, "the other worker runs them")) - at_kill


def cancellation(data: Path, target: Target) -> float:
    """Returns the seconds from the command `cancel` until three workers run no process of the job."""
    job = target.write_job(data, "record_start", run_seconds=60)
    with target.roles(workers=3):
        job_id = target.run("enqueue", str(job)).split()[0]
        wait_until(lambda: len(target.nodes()) == 3, "three workers work")
        started = time.perf_counter()
        target.run("cancel", job_id)
        processes = {process for _, process, _, _ in target.records()}
        wait_until(lambda: not any(map(is_alive, processes)), "all processes end")
        return time.perf_counter() - started


def small_beside_large(data: Path, few: Path, target: Target) -> float:
    """Returns the seconds from the start of `enqueue` of a small job to its output. Large jobs have all processes of
    three workers."""
    names = [f"large-{number}" for number in range(LARGE_JOBS)]
    with target.roles(workers=3):
        for name in names:
            target.run("enqueue", str(target.write_job(data, "record_start", run_seconds=0.2, name=name)))
        wait_until(lambda: all(map(target.records, names)), "runs of every large job")
        time.sleep(IDLE_SECONDS)
        started = time.time()
        target.run("enqueue", str(target.write_job(few, "record_start", run_seconds=0.2)))
        output = target.folder / "bench" / "rows"
        wait_until(output.exists, "the output of the small job")
        return output.stat().st_mtime - started


def requests(data: Path, count: int, folder: Path) -> Figures:
    """Counts the requests to SQS and S3 for 1 000 mini-batches."""
    with counted(folder) as (target, proxy):
        target.run("run", str(target.write_job(data)))
        return by_class(proxy, 1000 / count)


def idle_requests(seconds: int, folder: Path) -> Figures:
    """Counts the requests to SQS and S3 in an hour of one idle worker and one idle reducer."""
    with counted(folder) as (target, proxy), target.roles(workers=1):
        time.sleep(IDLE_SECONDS)
        proxy.counts.clear()
        time.sleep(seconds)
        return by_class(proxy, 3600 / seconds)


@contextlib.contextmanager
def counted(folder: Path) -> Iterator[tuple[Target, CountingProxy]]:
    """Creates a target whose requests a proxy counts."""
    with CountingProxy(os.environ["GRISTMILL_TEST_AWS_ENDPOINT"]) as proxy:
        target = Target("SQS", folder, proxy.url)
        proxy.counts.clear()
        yield target, proxy


def by_class(proxy: CountingProxy, factor: float) -> Figures:
    counts = proxy.by_class()
    classes = {"sqs": counts["queue"], "puts": counts["PUT"] + counts["LIST"], "gets": counts["GET"]}
    return {name: count * factor for name, count in classes.items()}


def slow_node(data: Path, count: int, slower: float, speculation: bool, folder: Path) -> Figures:
    """Measures a job on four nodes, of which one takes many times as long, as with a disk about to fail."""
    target = Target("folder", folder)
    slow = folder / "slow_node"
    variables = {"RUN_SECONDS": str(SLOW_SECONDS), "SLOWER": str(slower), "SLOW_NODE": str(slow)}
    settings = {"mini_batch_size": 1, "process_count_per_node": 1, "speculation": speculation}
    job = write_job(folder, "slow_node", files_at(data), environment_variables=variables, **settings)
    with target.roles(SLOW_NODES) as nodes:
        slow.write_text(str(nodes[0].pid))
        time.sleep(IDLE_SECONDS)
        began = time.perf_counter()
        ended = json.loads(target.run("enqueue", str(job), "--wait", "--json"))
        seconds = time.perf_counter() - began
    if (found := count_lines(folder / "rows")) != count:
        sys.exit(f"{count} rows were due, and there are {found}")
    speculative = ended.get("copies", {})
    return {"seconds": seconds, "started": speculative.get("started", 0), "won": speculative.get("won", 0)}


def fleet(cache: Path, scale: float) -> Iterator[Workload]:
    count = scaled(20_000, scale, 100)
    data, few, ten = (small_files(cache, number) for number in (count, 200, 10))
    amqp, endpoint = os.environ["GRISTMILL_TEST_AMQP_URL"], os.environ["GRISTMILL_TEST_AWS_ENDPOINT"]
    title = f"{count:,} mini-batches of one file through"
    sides = {
        "gristmill": partial(through, "RabbitMQ", data),
        "celery": peer("celery_side.py", amqp, str(data), str(PROCESSES)),
    }
    yield Workload("rabbitmq", f"{title} RabbitMQ", sides, count, "mini-batches", same_bytes)
    sides = {"gristmill": partial(through, "SQS", data), "boto": peer("boto_side.py", endpoint, str(count))}
    yield Workload("sqs", f"{title} SQS", sides, count, "mini-batches")

    def reaction(name: str, title: str, reacts: Callable[[Target], float]) -> Workload:
        def side_of(kind: str) -> Side:
            return lambda folder: {"seconds": reacts(Target(kind, folder))}

        return Workload(name, title, {kind: side_of(kind) for kind in KINDS})

    yield reaction("first-run", "end of `enqueue` until the first run, on an idle fleet", partial(first_run, few))
    title = "SIGKILL of a worker until its mini-batches run elsewhere"
    yield reaction("takeover", title, partial(takeover, few))
    yield reaction("cancel", "`gristmill cancel` until three workers have stopped", partial(cancellation, few))
    title = f"`enqueue` of ten mini-batches of 0.2 s until the output, beside {LARGE_JOBS} large jobs"
    yield reaction("small", title, partial(small_beside_large, data, ten))
    title = "1,000 mini-batches of one file"
    yield Workload("requests", title, {"gristmill": partial(requests, data, count)}, rounds_max=1)
    seconds = scaled(COUNTED_SECONDS, scale, 5)
    title = "an hour of one idle worker and one idle reducer"
    yield Workload("idle", title, {"gristmill": partial(idle_requests, seconds)}, rounds_max=1)
    files = small_files(cache, mini_batches := scaled(SLOW_MINI_BATCHES, scale, 20))
    each = f"{mini_batches} mini-batches of {SLOW_SECONDS} s on {SLOW_NODES} nodes"
    title = f"{each}; a slow one takes {SLOWER} times as long"
    sides = {
        "no slow node": partial(slow_node, files, mini_batches, 1, False),
        "one slow node": partial(slow_node, files, mini_batches, SLOWER, False),
        "one slow node, `speculation`": partial(slow_node, files, mini_batches, SLOWER, True),
    }
    yield Workload("slow-node", title, sides)
