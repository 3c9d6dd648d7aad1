"""A fleet of real processes to which tests do something bad while a job runs, and what must hold at its end."""

from __future__ import annotations

import csv
import hashlib
import io
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from components import Components
from harness import Job, Workplace, file_names, wait_until
from proxy import AwsProxy, Policy, Proxy
from targets import Target

COUNT = 1000
WORKERS = 3
SEED = 20261121
# Long enough for every observer to notice, short enough to wait for.
LEASE_SECONDS = 5
END_SECONDS = 240
REPORT = "sys/job_report/processed_mini-batches.csv"
SCRIPT = """
    import hashlib, os, time
    from recorder import record, wait_for
    def run(files):
        name = os.path.basename(files[0])
        time.sleep(float(os.environ.get("SLEEP", "0.02")))
        if name == "000.txt":
            wait_for(lambda: os.path.exists(os.environ["GATE"]))
        record("run", file=name, node=os.environ.get("NODE"))
        # Messages carry most rows; some become parts.
        more = 100_000 if name.endswith("77.txt") else 20
        return [f"{name} {hashlib.sha256(name.encode()).hexdigest()} {'x' * more}"]
"""


def row(name: str) -> str:
    """Returns the row of a file in the output of an undisturbed run."""
    return f"{name} {hashlib.sha256(name.encode()).hexdigest()} {'x' * (100_000 if name.endswith('77.txt') else 20)}\n"


def successes(attempts: list[dict[str, str]]) -> Counter[int]:
    """Returns how often each mini-batch has succeeded, by the rows of a report."""
    return Counter(int(row["Mini-batch Id"]) for row in attempts if row["Status"] == "RUN_DONE")


class Process:
    """A role of the fleet, with its long output in a file."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.command, self.environment, self.log = command, environment, log
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C reaches only the test, which ends it.
                start_new_session=True,
            )

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()


class Fleet:
    """A target and its roles, each of which can have its own ways to the queue and to the store."""

    def __init__(self, kind: str, workplace: Workplace, components: Components) -> None:
        self.workplace, self.components = workplace, components
        self.target = Target(kind, workplace, components)
        # Each process gets its own endpoints, so that faults can separate them.
        del self.target.settings["endpoint"]
        self.target.write()
        endpoint = components.aws_endpoint
        workplace.environment.update(AWS_ENDPOINT_URL_S3=endpoint, AWS_ENDPOINT_URL_SQS=endpoint)
        self.roles: list[Process] = []
        self.proxies: list[Proxy | AwsProxy] = []

    def proxy(self, proxy: Proxy) -> Proxy:
        self.proxies.append(proxy)
        return proxy

    def _way_to_aws(self, variable: str) -> tuple[Proxy, dict[str, str]]:
        proxy = self.proxy(Proxy(int(self.components.aws_endpoint.rpartition(":")[2])))
        return proxy, {variable: f"http://127.0.0.1:{proxy.port}"}

    def way_to_queue(self) -> tuple[Proxy, dict[str, str]]:
        """Returns a connection to the queue that tests can cut, and the variables of a role that uses it."""
        if self.target.kind == "sqs":
            return self._way_to_aws("AWS_ENDPOINT_URL_SQS")
        port = self.components.amqp_port
        proxy = self.proxy(Proxy(port))
        return proxy, {"GRISTMILL_QUEUE": self.target.settings["queue"].replace(f":{port}/", f":{proxy.port}/")}

    def way_to_store(self) -> tuple[Proxy, dict[str, str]]:
        """Returns a connection to the store that tests can cut, and the variables of a role that uses it."""
        return self._way_to_aws("AWS_ENDPOINT_URL_S3")

    def role(self, name: str, *arguments: str, **environment: str) -> Process:
        command = [str(self.workplace.executable), name, "--target", self.target.name, *arguments]
        config = str(self.workplace.folder / "gristmill.toml")
        settings = {**self.workplace.environment, "GRISTMILL_CONFIG": config, **environment}
        role = Process(command, settings, self.workplace.folder / f"{name}-{len(self.roles)}.log")
        self.roles.append(role)
        return role

    def report(self, job_id: str) -> list[dict[str, str]]:
        """Returns the rows of the report of a job: its attempts."""
        report = self.target.command("logs", job_id, REPORT, expect=0).stdout
        return list(csv.DictReader(io.StringIO(report)))

    def logs(self) -> str:
        return "\n".join(f"--- {role.log.name}\n{role.log.read_text()[-3000:]}" for role in self.roles)

    def close(self) -> None:
        for role in self.roles:
            role.kill()
        for proxy in self.proxies:
            proxy.close()
        self.target.remove()


class GatedFleet(Fleet):
    """A fleet with three workers and a reducer, and a job that waits for its gate."""

    def __init__(
        self, kind: str, workplace: Workplace, components: Components, record_property: Callable[[str, object], None]
    ) -> None:
        super().__init__(kind, workplace, components)
        self.record_property = record_property
        self.random = random.Random(SEED)
        self.faults: Counter[str] = Counter()
        self.gate = workplace.folder / "gate"
        if kind == "rabbitmq":
            # A node that does not answer loses its leases after two of these.
            self.target.settings["queue"] += f"&heartbeat={LEASE_SECONDS}"
            self.target.write()
        workplace.environment.update(GATE=str(self.gate), GRISTMILL_LEASE_SECONDS=str(LEASE_SECONDS))
        workplace.data(COUNT)
        self.job_id = ""

    def job(self) -> Job:
        return self.workplace.job(SCRIPT, run_max_try=3)

    def aws_proxy(self, variable: str, policy: Policy) -> None:
        """Lets all roles reach AWS only through this policy."""
        self.proxies.append(AwsProxy(self.components.aws_endpoint, policy, SEED))
        self.workplace.environment[variable] = self.proxies[-1].url

    def worker(self, *arguments: str, **environment: str) -> Process:
        return self.role("worker", "--process-count", "1", *arguments, **environment)

    def start(self) -> tuple[list[Process], Process]:
        """Enqueues the job, starts all roles, and waits until a part of the job is done."""
        self.job_id = self.target.enqueue(self.job())
        workers = [self.worker() for _ in range(WORKERS)]
        reducer = self.role("reducer")
        self.wait_for_runs(COUNT // 10)
        return workers, reducer

    def runs(self) -> int:
        record = self.workplace.record_file
        return record.read_bytes().count(b"\n") if record.exists() else 0

    def committed(self) -> int:
        return self.target.committed(self.job_id)

    def runs_of(self, node: str) -> int:
        return sum(fact["node"] == node for fact in self.workplace.recorded("run"))

    def wait_for_runs(self, count: int) -> None:
        wait_until(lambda: self.runs() >= count, f"{count} mini-batches", END_SECONDS)

    def end(self) -> None:
        """Opens the gate, waits for the end, and compares."""
        self.gate.touch()
        try:
            result = self.target.wait_for_end(self.job_id, seconds=END_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.target.status(self.job_id)}\n{self.logs()}") from None
        everything = {"total": COUNT, "succeeded": COUNT, "failed": 0}
        assert result["mini_batches"] == everything, result
        assert result["items"] == everything, result
        output = self.target.output(result)
        assert len(output.splitlines()) == COUNT
        expected = "".join(map(row, file_names(COUNT))).encode()
        assert output == expected, "the final file differs from that of an undisturbed run"

        # A late reducer completes the report a moment after the end.
        attempts = wait_until(self.attempts_of_all, "one success for each mini-batch in the report")
        runs = [fact["file"] for fact in self.workplace.recorded("run")]
        assert len(set(runs)) == COUNT
        for proxy in self.proxies:
            self.faults.update(proxy.faults)
        assert self.faults, "nothing was done to this job"
        told = ", ".join(f"{count} {name}" for name, count in self.faults.items())
        counts = f"{len(runs)} mini-batches run, {len(attempts)} attempts in the report"
        self.record_property("faults", f"{told}; {counts}, {result['duplicates_dropped']} duplicates dropped")

    def attempts_of_all(self) -> list[dict[str, str]]:
        """Returns the rows of the report, or none unless each mini-batch has succeeded once."""
        attempts = self.report(self.job_id)
        return attempts if successes(attempts) == dict.fromkeys(range(COUNT), 1) else []
