"""A soak: ten kinds of jobs in turn on fleets of real processes, to which faults happen at random.

Jobs begin until the time is over; the last one ends undisturbed. Each broker has a target with its store in LocalStack,
three workers of two processes and two reducers, and the brokers soak at the same time. Workers and reducers are killed,
terminated, paused, and cut off from queue or store; one worker and one reducer are never killed. After each job its
state, its counts and its output must be those of a run without faults, and at the end memory and open files of each
role that lived long enough must be where they were.

Needs the components of scripts/up; scripts/soak starts them. The result folder holds samples.csv, and of a broker that
failed the logs of its roles and the objects of its job.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parent / "support"))
from components import Components
from faulty_fleet import Fleet, Process, successes
from harness import COMPLETED, Ended, Workplace, next_second, wait_until
from proxy import Proxy
from soak_jobs import KINDS, REPAIRED, Kind

BROKERS = ["sqs", "rabbitmq"]
SAMPLE_SECONDS = 5
JUDGED_SECONDS = 600
"""Memory and open files are compared over at least this time."""
RSS_GROWTH_MB, RSS_GROWTH, DESCRIPTOR_GROWTH = 20, 0.15, 20
"""Growth from the second quarter to the last: allowed are the larger of the first two, and the third.

Of memory the medians are compared; of open files the least, because each Python process of a job needs some.
"""
REST_SECONDS = 30
"""At the end the roles have nothing to do for this time."""
FAULT_SECONDS = (2, 45)
PAUSE_SECONDS = (5, 60)
"""Between two faults of one role."""
STOP_SECONDS = 180
"""A role that is asked to stop ends within this time: its grace, and what a busy machine takes."""
JOB_SECONDS = 1500
QUIET_SECONDS = 15
"""An undisturbed worker has announced what it ran, and knows that its job has ended."""


class SoakError(Exception):
    pass


def main() -> None:
    about, _, details = __doc__.partition("\n")
    parser = argparse.ArgumentParser(
        prog="scripts/soak", description=about, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("brokers", nargs="*", metavar="BROKER", help="sqs, rabbitmq (default: both, at the same time)")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10**6), help="decides the faults (default: random)"
    )
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="default: a new one in ~/.cache/gristmill/soak")
    options = parser.parse_args()
    if unknown := set(options.brokers) - set(BROKERS):
        parser.error(f"unknown broker {min(unknown)}; there are {' and '.join(BROKERS)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(soak(options.brokers or BROKERS, options.minutes * 60, options.seed, options.results or new_folder()))


def new_folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "gristmill/soak" / datetime.now().strftime("%Y%m%d-%H%M%S")


def soak(brokers: list[str], seconds: float, seed: int, folder: Path) -> int:
    """Returns the exit status."""
    folder.mkdir(parents=True, exist_ok=True)
    told = f"scripts/soak --minutes {seconds / 60:g} --seed {seed} {' '.join(brokers)}"
    print(f"{told}\nresults: {folder}", flush=True)
    components, references = Components.from_environment(), References(folder / "reference")
    with (folder / "samples.csv").open("w", newline="") as file:
        samples = Samples(file)
        soaks = [Soak(broker, seconds, seed, folder, components, references) for broker in brokers]
        interrupted = False
        try:
            for one in soaks:
                one.start()
            watch(soaks, samples)
        except KeyboardInterrupt:
            print("interrupted: stopping all roles", flush=True)
            interrupted = True
        # A second Ctrl-C shall leave no role behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for one in soaks:
            one.stop()
            one.join()
    if interrupted:
        return 130
    failures = [f"{one.name}: {failure}" for one in soaks for failure in one.failures]
    for one in soaks:
        print(f"{one.name}: {one.told()}; faults: {one.told_faults()}")
    lines, grown = samples.judge()
    print(*lines, sep="\n")
    for failure in failures + grown:
        print(f"FAILED {failure}")
    if failures or grown:
        print(f"soak failed with seed {seed}; logs and samples: {folder}")
        return 1
    print(f"soak passed: nothing lost, nothing twice; samples: {folder}/samples.csv")
    for one in soaks:
        shutil.rmtree(one.folder / "data", ignore_errors=True)
    return 0


def watch(soaks: list[Soak], samples: Samples) -> None:
    """Samples all roles, and prints a line for each broker once a minute, until all soaks have ended."""
    began = minute = time.monotonic()
    while any(one.is_alive() for one in soaks):
        for one in soaks:
            one.look()
            for role in one.roles:
                samples.take(time.monotonic() - began, one.name, role)
        if time.monotonic() >= minute + 60:
            minute += 60
            now = f"{(time.monotonic() - began) / 60:.0f} min"
            for one in soaks:
                print(f"{now} {one.name}: {one.told()}; {one.told_roles()}", flush=True)
        time.sleep(SAMPLE_SECONDS)


@dataclass
class Role:
    """A worker or reducer, and its ways to the queue and the store."""

    name: str
    process: Process
    ways: dict[str, Proxy]
    is_killed: bool
    is_down: bool = False
    """A fault has stopped the process."""
    log_begins: int = 0
    """Where the log of the running process begins."""

    @property
    def pid(self) -> int:
        return self.process.process.pid

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        self.is_down = True
        yield
        self.log_begins = self.process.log.stat().st_size
        self.process.start()
        self.is_down = False

    def terminate(self) -> None:
        """Stops the process in order."""
        self.process.send(signal.SIGTERM)
        self.wait_for_end()

    def wait_for_end(self) -> None:
        """Waits for the end of a process that has got a SIGTERM."""
        try:
            status = self.process.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise SoakError(f"{self.name} still runs {STOP_SECONDS} s after SIGTERM") from None
        is_ready = b" is ready " in self.process.log.read_bytes()[self.log_begins :]
        # Before it is ready it has nothing to return, and the signal may end it at once.
        if status != 0 and (is_ready or status != -signal.SIGTERM):
            raise SoakError(f"{self.name} ended with status {status} after SIGTERM")

    def reading(self) -> tuple[float, int] | None:
        """Returns the resident memory in megabytes and the number of open files, unless the process is down."""
        process = Path(f"/proc/{self.pid}")
        try:
            memory = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS"))
            return int(memory.split()[1]) / 1024, len(list((process / "fd").iterdir()))
        except (OSError, StopIteration):
            return None

    def python_processes(self) -> list[int]:
        """Returns the children of the process."""
        try:
            lists = [children.read_text() for children in Path(f"/proc/{self.pid}/task").glob("*/children")]
        except OSError:
            return []
        return [int(child) for children in lists for child in children.split()]


@dataclass
class Moment:
    """One fault: its role, the draws of this role, its length, and a wait that ends early if faults are over."""

    role: Role
    draws: random.Random
    seconds: float
    wait: Callable[[float], Any]


def kill(moment: Moment) -> None:
    with moment.role.down():
        moment.role.process.kill()
        moment.wait(moment.seconds)


def terminate(moment: Moment) -> None:
    with moment.role.down():
        moment.role.terminate()
        moment.wait(moment.seconds / 4)


def pause(moment: Moment) -> None:
    moment.role.process.send(signal.SIGSTOP)
    try:
        moment.wait(moment.seconds)
    finally:
        moment.role.process.send(signal.SIGCONT)


def kill_python(moment: Moment) -> None:
    if found := moment.role.python_processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(moment.draws.choice(found), signal.SIGKILL)


def cut(moment: Moment) -> None:
    disturb(moment, Proxy.cut)


def stall(moment: Moment) -> None:
    disturb(moment, Proxy.stall)


def disturb(moment: Moment, how: Callable[[Proxy], None]) -> None:
    """Disturbs the connection to the queue, to the store, or to both."""
    ways = list(moment.role.ways.values())
    chosen = moment.draws.choice([ways[:1], ways[1:], ways])
    for way in chosen:
        how(way)
    moment.wait(moment.seconds)
    for way in chosen:
        way.restore()


KILLS = [kill, terminate]
FAULTS = [pause, kill_python, cut, stall]


class References:
    """The results of undisturbed runs of all kinds of jobs on this machine, each run when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self.workplace = new_workplace(folder)
        (folder / REPAIRED).touch()
        self.lock = threading.Lock()
        self.ended: dict[str, Ended] = {}

    def of(self, kind: Kind) -> Ended:
        with self.lock:
            if kind.name not in self.ended:
                self.ended[kind.name] = kind.job(self.workplace).run(expect=COMPLETED)
            return self.ended[kind.name]


def new_workplace(folder: Path) -> Workplace:
    folder.mkdir()
    return Workplace(folder, Path(os.environ["GRISTMILL"]).resolve(), Path(sys.executable))


class Soak(threading.Thread):
    """The soak of one broker."""

    def __init__(
        self, broker: str, seconds: float, seed: int, folder: Path, components: Components, references: References
    ) -> None:
        super().__init__(name=broker)
        self.folder, self.seconds, self.seed, self.references = folder / broker, seconds, seed, references
        self.components = components
        # A short soak has shorter faults.
        self.scale = min(1, max(0.15, seconds / 300))
        self.over = threading.Event()
        """Set at the end, by a failure, or by Ctrl-C."""
        self.is_calm = threading.Event()
        """Set once no more faults shall happen."""
        self.spares_processes = False
        self.roles: list[Role] = []
        self.jobs = 0
        self.doing = "preparing"
        self.faults: Counter[str] = Counter()
        self.failures: list[str] = []

    def told(self) -> str:
        return f"{self.jobs} jobs done, {self.faults.total()} faults, {self.doing}"

    def told_roles(self) -> str:
        readings = {role.name: role.reading() for role in self.roles}
        return ", ".join(
            f"{role} {reading[0]:.0f} MB {reading[1]} files" if reading else f"{role} down"
            for role, reading in readings.items()
        )

    def told_faults(self) -> str:
        return ", ".join(f"{count} x {name}" for name, count in sorted(self.faults.items())) or "none"

    def stop(self) -> None:
        self.over.set()
        self.is_calm.set()

    def fail(self, why: object) -> None:
        failure = f"{self.doing}, seed {self.seed}: {why}"
        print(f"{self.name}: {failure}", flush=True)
        self.failures.append(failure)
        self.stop()

    def look(self) -> None:
        """Fails if a role has ended by itself."""
        for role in self.roles:
            was_down, status = role.is_down, role.process.process.poll()
            # A fault may begin or end between these lines.
            if status is not None and not (was_down or role.is_down or self.over.is_set()):
                self.fail(f"{role.name} has ended by itself with status {status}: {role.process.log}")

    def run(self) -> None:
        try:
            self.fleet = Fleet(self.name, new_workplace(self.folder), self.components)
        except Exception as error:
            self.fail(repr(error))
            return
        try:
            self.start_roles()
            self.run_jobs()
        except Exception as error:
            self.fail(error if isinstance(error, (AssertionError, SoakError)) else repr(error))
        finally:
            self.stop()
            self.stop_roles()
            self.fleet.close()

    def start_roles(self) -> None:
        names = [*["worker"] * 3, *["reducer"] * 2]
        for number, name in enumerate(names):
            ways, variables = {}, {}
            for end, way in (("queue", self.fleet.way_to_queue()), ("store", self.fleet.way_to_store())):
                ways[end] = way[0]
                variables.update(way[1])
            arguments = ["--process-count", "2"] if name == "worker" else []
            process = self.fleet.role(name, *arguments, **variables)
            # The first worker and the first reducer live as long as the soak.
            is_first = number == names.index(name)
            self.roles.append(Role(process.log.stem, process, ways, is_killed=not is_first))
        self.troubles = [threading.Thread(target=self.trouble, args=(role,)) for role in self.roles]
        for thread in self.troubles:
            thread.start()

    def trouble(self, role: Role) -> None:
        """Does something bad to a role again and again."""
        draws = random.Random(f"{self.seed} {self.name} {role.name}")
        faults = [*KILLS, *FAULTS] if role.is_killed else FAULTS
        if role.name.startswith("reducer"):
            faults = [fault for fault in faults if fault is not kill_python]
        try:
            while not self.is_calm.wait(draws.uniform(*PAUSE_SECONDS) * self.scale):
                fault, seconds = draws.choice(faults), draws.uniform(*FAULT_SECONDS) * self.scale
                if fault is kill_python and self.spares_processes:
                    continue
                self.faults[fault.__name__] += 1
                self.log(f"{role.name} {role.pid}: {fault.__name__}, {seconds:.1f} s")
                fault(Moment(role, draws, seconds, self.is_calm.wait))
                self.log(f"{role.name} {role.pid}: {fault.__name__} is over")
        except Exception as error:
            self.fail(error if isinstance(error, SoakError) else repr(error))

    def log(self, line: str) -> None:
        """Adds a line to the list of faults and jobs of this broker."""
        with (self.folder / "faults.log").open("a") as file:
            file.write(f"{datetime.now(timezone.utc).isoformat(timespec='milliseconds')} {line}\n")

    def stop_roles(self) -> None:
        for thread in self.troubles:
            thread.join()
        running = [role for role in self.roles if role.process.process.poll() is None]
        for role in running:
            role.process.send(signal.SIGTERM)
        for role in running:
            try:
                role.wait_for_end()
            except SoakError as error:
                self.fail(error)

    def run_jobs(self) -> None:
        # The last job ends undisturbed.
        timer = threading.Timer(self.seconds, self.is_calm.set)
        timer.daemon = True
        timer.start()
        while not self.is_calm.is_set():
            kind = KINDS[self.jobs % len(KINDS)]
            self.doing = f"job {self.jobs + 1} ({kind.name})"
            try:
                self.run_job(kind)
            except Interrupted:
                return
            self.jobs += 1
        target = self.fleet.target
        self.doing = "after the last job"
        letters = target.waiting("dead-letters")
        assert letters == 0, f"{letters} dead letters: {target.command('dead-letters').stdout}"
        self.over.wait(REST_SECONDS * self.scale)

    def run_job(self, kind: Kind) -> None:
        target, workplace = self.fleet.target, self.fleet.workplace
        (workplace.folder / REPAIRED).unlink(missing_ok=True)
        self.spares_processes = kind.spares_processes
        # Ids of jobs contain whole seconds.
        next_second()
        job_id = target.enqueue(kind.job(workplace))
        self.doing += f" {job_id}"
        self.log(self.doing)
        try:
            if kind.cancel_after:
                self.wait(lambda: target.committed(job_id) >= kind.cancel_after, f"{kind.cancel_after} successes")
                target.command("cancel", job_id, expect=0)
            result = self.end_of(job_id, kind.state)
            if kind.is_retried:
                # Failures of the earlier run that arrive after a retry count as its own, so every worker, however it is
                # disturbed, has to know of the end.
                if self.over.wait(FAULT_SECONDS[1] * self.scale + QUIET_SECONDS):
                    raise Interrupted
                (workplace.folder / REPAIRED).touch()
                target.command("retry", job_id, expect=0)
                result = self.end_of(job_id, "Completed")
            succeeded = result["mini_batches"]["succeeded"]
            assert succeeded >= kind.cancel_after, f"{job_id} has lost successes: {result}"
            if result["state"] == "Completed":
                self.compare(kind, job_id, result)
            self.wait(lambda: not target.objects(f"open/{job_id}"), "an ended job that is not open")
        except Interrupted:
            raise
        except Exception:
            self.keep(job_id)
            raise
        shutil.rmtree(workplace.folder / "output" / kind.name, ignore_errors=True)

    def end_of(self, job_id: str, state: str) -> dict[str, Any]:
        result = self.wait(lambda: self.fleet.target.status(job_id)["result"], f"the end of {job_id}")
        assert result["state"] == state, f"{job_id} is not {state}: {result}"
        return result

    def compare(self, kind: Kind, job_id: str, result: dict[str, Any]) -> None:
        """Compares a completed job with its undisturbed run."""
        reference = self.references.of(kind)
        for counts in ("mini_batches", "items"):
            assert result[counts] == reference.result[counts], f"{job_id}, {counts}: {result}"
        output = self.fleet.target.output(result)
        if output != reference.output:
            (self.folder / "output-that-differs").write_bytes(output)
            raise SoakError(
                f"the output of {job_id} differs from that of a run without faults, {reference.result['output']}"
            )
        expected = successes(reference.attempts())
        # A late reducer completes the report a moment after the end.
        self.wait(lambda: successes(self.fleet.report(job_id)) == expected, "each success once in the report")

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Waits for a condition, or the end of the soak by a failure elsewhere or Ctrl-C."""

        def either() -> Any:
            if self.over.is_set():
                raise Interrupted
            return condition()

        return wait_until(either, what, JOB_SECONDS)

    def keep(self, job_id: str) -> None:
        """Saves what the store has of a job."""
        with contextlib.suppress(Exception):
            status = self.fleet.target.command("status", job_id)
            (self.folder / f"{job_id}.txt").write_text(str(status))
            for name, body in self.fleet.target.objects(f"jobs/{job_id}").items():
                path = self.folder / "objects" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(body)


class Interrupted(Exception):
    pass


class Samples:
    """Memory and open files of every process of a role. A process that was started again is another one."""

    def __init__(self, file: TextIO) -> None:
        self.writer, self.file = csv.writer(file), file
        self.writer.writerow(["seconds", "broker", "role", "pid", "rss_mb", "descriptors"])
        self.taken: dict[tuple[str, str, int], list[tuple[float, float, int]]] = defaultdict(list)

    def take(self, seconds: float, broker: str, role: Role) -> None:
        if reading := role.reading():
            megabytes, descriptors = reading
            self.taken[broker, role.name, role.pid].append((seconds, megabytes, descriptors))
            self.writer.writerow([f"{seconds:.0f}", broker, role.name, role.pid, f"{megabytes:.1f}", descriptors])
            self.file.flush()

    def judge(self) -> tuple[list[str], list[str]]:
        """Returns a line for each process that lived long enough, and those of them that say that it grew."""
        lines, grown = [], []
        for (broker, role, pid), samples in self.taken.items():
            if samples[-1][0] - samples[0][0] < JUDGED_SECONDS:
                continue
            quarter = len(samples) // 4
            parts = samples[quarter : 2 * quarter], samples[-quarter:]
            memory, later_memory = (median(megabytes for _, megabytes, _ in part) for part in parts)
            files, later_files = (min(count for _, _, count in part) for part in parts)
            minutes = (samples[-1][0] - samples[0][0]) / 60
            lines.append(
                f"{broker} {role} {pid}, {minutes:.0f} min: from the second quarter to the last {memory:.0f} to "
                f"{later_memory:.0f} MB, {files} to {later_files} open files"
            )
            if grows(memory, later_memory, files, later_files):
                grown.append(lines[-1])
        return lines or [f"memory and open files are not judged: no role lived for {JUDGED_SECONDS} s"], grown


def grows(memory: float, later_memory: float, files: float, later_files: float) -> bool:
    allowed = max(RSS_GROWTH_MB, RSS_GROWTH * memory)
    return later_memory - memory > allowed or later_files - files > DESCRIPTOR_GROWTH


if __name__ == "__main__":
    main()
