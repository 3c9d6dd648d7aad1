"""Exactly one set of rows per mini-batch, under faults of processes, brokers, networks and the store.

Every test runs one job with three workers and a reducer as real processes, does something bad to them while it runs,
and then looks at what counts: the final file equals that of an undisturbed run, byte for byte, and the report adds up.
One mini-batch waits for a gate, so that the job is open for as long as there are faults. What is drawn is drawn from a
seed. Each test prints its faults, the mini-batches that ran, their attempts and the duplicates that were dropped.
"""

from __future__ import annotations

import csv
import io
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pika
import pytest

from components import Components
from harness import Job, Workplace, wait_until
from proxy import AwsProxy, Policy, Proxy, failing_store, sending_twice
from targets import Target

pytestmark = pytest.mark.timeout(400)

COUNT = 2000
WORKERS = 3
SEED = 20261121
# Long enough for every observer to notice, short enough to wait for.
LEASE_SECONDS = 5
END_SECONDS = 240
SCRIPT = """
    import hashlib, os, time
    from recorder import record, wait_for
    def run(files):
        name = os.path.basename(files[0])
        time.sleep(float(os.environ.get("SLEEP", "0.01")))
        if name == "000.txt":
            wait_for(lambda: os.path.exists(os.environ["GATE"]))
        record("run", file=name, node=os.environ.get("NODE"))
        # Messages carry most rows; some become parts.
        more = 100_000 if name.endswith("77.txt") else 20
        return [f"{name} {hashlib.sha256(name.encode()).hexdigest()} {'x' * more}"]
"""


class Process:
    """A role of the fleet, with its long output in a file."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.command, self.environment, self.log = command, environment, log
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
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
    """A target with three workers and a reducer, and a job that waits for its gate."""

    def __init__(self, kind: str, workplace: Workplace, components: Components) -> None:
        self.workplace, self.components = workplace, components
        self.random = random.Random(SEED)
        self.faults: Counter[str] = Counter()
        self.gate = workplace.folder / "gate"
        self.target = Target(kind, workplace, components)
        # Each process gets its own endpoints, so that faults can separate them.
        del self.target.settings["endpoint"]
        if kind == "rabbitmq":
            # A node that does not answer loses its leases after two of these.
            self.target.settings["queue"] += f"&heartbeat={LEASE_SECONDS}"
        self.target.write()
        endpoint = components.aws_endpoint
        workplace.environment.update(
            AWS_ENDPOINT_URL_S3=endpoint,
            AWS_ENDPOINT_URL_SQS=endpoint,
            GATE=str(self.gate),
            GRISTMILL_LEASE_SECONDS=str(LEASE_SECONDS),
        )
        workplace.data(COUNT)
        self.roles: list[Process] = []
        self.proxies: list[Proxy | AwsProxy] = []
        self.job_id = ""

    def job(self) -> Job:
        return self.workplace.job(SCRIPT, run_max_try=3)

    def proxy(self, proxy: Proxy) -> Proxy:
        self.proxies.append(proxy)
        return proxy

    def aws_proxy(self, variable: str, policy: Policy) -> None:
        """Lets all roles reach AWS only through this policy."""
        self.proxies.append(AwsProxy(self.components.aws_endpoint, policy, SEED))
        self.workplace.environment[variable] = self.proxies[-1].url

    def role(self, name: str, *arguments: str, **environment: str) -> Process:
        command = [str(self.workplace.executable), name, "--target", self.target.name, *arguments]
        config = str(self.workplace.folder / "gristmill.toml")
        settings = {**self.workplace.environment, "GRISTMILL_CONFIG": config, **environment}
        role = Process(command, settings, self.workplace.folder / f"{name}-{len(self.roles)}.log")
        self.roles.append(role)
        return role

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

    def runs_of(self, node: str) -> int:
        return sum(fact["node"] == node for fact in self.workplace.recorded("run"))

    def wait_for_runs(self, count: int) -> None:
        wait_until(lambda: self.runs() >= count, f"{count} mini-batches", END_SECONDS)

    def end(self, reference: bytes, record_property) -> None:
        """Opens the gate, waits for the end, and compares."""
        self.gate.touch()
        end = time.monotonic() + END_SECONDS
        while not (result := (status := self.target.status(self.job_id))["result"]):
            assert time.monotonic() < end, f"{self.job_id} does not end: {status}\n{self.logs()}"
            time.sleep(0.5)
        assert result["state"] == "Completed", f"{result}\n{self.logs()}"
        everything = {"total": COUNT, "succeeded": COUNT, "failed": 0}
        assert result["mini_batches"] == everything, result
        assert result["items"] == everything, result
        output = self.target.output(result)
        assert len(output.splitlines()) == COUNT
        assert output == reference, "the final file differs from that of an undisturbed run"

        # A late reducer completes the report a moment after the end.
        attempts = wait_until(self.attempts_of_all, "one success for each mini-batch in the report")
        runs = [fact["file"] for fact in self.workplace.recorded("run")]
        assert len(set(runs)) == COUNT
        for proxy in self.proxies:
            self.faults.update(proxy.faults)
        assert self.faults, "nothing was done to this job"
        told = ", ".join(f"{count} {name}" for name, count in self.faults.items())
        counts = f"{len(runs)} mini-batches run, {len(attempts)} attempts in the report"
        record_property("faults", f"{told}; {counts}, {result['duplicates_dropped']} duplicates dropped")

    def attempts_of_all(self) -> list[dict[str, str]]:
        """Returns the rows of the report, or none unless each mini-batch has succeeded once."""
        report = self.target.command("logs", self.job_id, "sys/job_report/processed_mini-batches.csv", expect=0).stdout
        attempts = list(csv.DictReader(io.StringIO(report)))
        succeeded = Counter(int(row["Mini-batch Id"]) for row in attempts if row["Status"] == "RUN_DONE")
        return attempts if succeeded == dict.fromkeys(range(COUNT), 1) else []

    def logs(self) -> str:
        return "\n".join(f"--- {role.log.name}\n{role.log.read_text()[-3000:]}" for role in self.roles)

    def close(self) -> None:
        for role in self.roles:
            role.kill()
        for proxy in self.proxies:
            proxy.close()
        self.target.remove()


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory, executable: Path) -> bytes:
    """Returns the output of an undisturbed run."""
    folder = tmp_path_factory.mktemp("undisturbed")
    workplace = Workplace(folder, executable, Path(os.sys.executable))
    workplace.data(COUNT)
    workplace.write({"gate": ""})
    job = workplace.job(SCRIPT, process_count_per_node=4)
    return job.run(GATE=str(folder / "gate")).output


@pytest.fixture(scope="session")
def own_rabbitmq(components: Components, tmp_path_factory: pytest.TempPathFactory):
    """A RabbitMQ that tests may restart, and whose messages they may observe."""
    own = components.with_own_rabbitmq(tmp_path_factory.mktemp("rabbitmq"))
    yield own
    own.down()


@pytest.fixture
def fleet(request, workplace, components):
    fleet = Fleet(request.param, workplace, components)
    yield fleet
    fleet.close()


@pytest.fixture
def own_fleet(workplace, own_rabbitmq):
    fleet = Fleet("rabbitmq", workplace, own_rabbitmq)
    yield fleet
    fleet.close()


both = pytest.mark.parametrize("fleet", ["sqs", "rabbitmq"], indirect=True)
# So that one RabbitMQ of their own is enough.
in_one_process = pytest.mark.xdist_group("rabbitmq")


@both
def test_worker_killed_every_second(fleet, reference, record_property):
    workers, _ = fleet.start()
    for _ in range(12):
        fleet.random.choice(workers).restart()
        fleet.faults["workers killed"] += 1
        time.sleep(1)
    fleet.end(reference, record_property)


@both
def test_worker_stopped_past_its_lease(fleet, reference, record_property):
    workers, _ = fleet.start()
    for worker in workers[:2]:
        worker.send(signal.SIGSTOP)
        time.sleep(3.5 * LEASE_SECONDS)
        worker.send(signal.SIGCONT)
        fleet.faults["workers stopped past their lease"] += 1
    fleet.end(reference, record_property)


@both
def test_reducer_killed_repeatedly(fleet, reference, record_property):
    _, reducer = fleet.start()
    for _ in range(6):
        time.sleep(fleet.random.uniform(0.5, 2))
        reducer.restart()
        fleet.faults["reducers killed"] += 1
    fleet.end(reference, record_property)


@both
def test_several_reducers_serve_one_job(fleet, reference, record_property):
    _, reducer = fleet.start()
    fleet.role("reducer")
    fleet.faults["reducers too many"] += 1
    fleet.wait_for_runs(COUNT // 2)
    fleet.role("reducer")
    fleet.faults["reducers too many"] += 1
    reducer.kill()
    fleet.faults["reducers killed"] += 1
    fleet.end(reference, record_property)


@in_one_process
def test_rabbitmq_restart(own_fleet, own_rabbitmq, reference, record_property):
    own_fleet.start()
    own_rabbitmq.down("rabbitmq")
    own_rabbitmq.up("rabbitmq")
    own_fleet.faults["restarts of RabbitMQ"] += 1
    own_fleet.wait_for_runs(own_fleet.runs() + 50)
    os.killpg(own_rabbitmq.process("rabbitmq"), signal.SIGKILL)
    own_rabbitmq.down("rabbitmq")
    own_rabbitmq.up("rabbitmq")
    own_fleet.faults["kills of RabbitMQ"] += 1
    own_fleet.end(reference, record_property)


@both
def test_network_cut_between_worker_and_queue(fleet, reference, record_property):
    if fleet.target.kind == "sqs":
        proxy = fleet.proxy(Proxy(int(fleet.components.aws_endpoint.rpartition(":")[2])))
        far = {"AWS_ENDPOINT_URL_SQS": f"http://127.0.0.1:{proxy.port}"}
    else:
        port = int(fleet.components.amqp_url.partition("@")[2].partition("/")[0].rpartition(":")[2])
        proxy = fleet.proxy(Proxy(port))
        far = {"GRISTMILL_QUEUE": fleet.target.settings["queue"].replace(f":{port}/", f":{proxy.port}/")}
    # There is work while the network is cut.
    fleet.workplace.environment["SLEEP"] = "0.05"
    # After the others, one of which waits at the gate.
    fleet.start()
    fleet.worker(NODE="far", **far)
    for _ in range(4):
        before = fleet.runs_of("far")
        wait_until(lambda before=before: fleet.runs_of("far") > before or fleet.runs() > COUNT // 2, "work far away")
        proxy.cut()
        time.sleep(fleet.random.uniform(0.5, 2 * LEASE_SECONDS))
        proxy.restore()
        time.sleep(fleet.random.uniform(1, 2))
    assert fleet.runs_of("far") and proxy.faults["connections broken"], "nothing was cut off"
    fleet.end(reference, record_property)


@both
def test_store_fails_one_request_in_ten_and_stalls_others(fleet, reference, record_property):
    fleet.aws_proxy("AWS_ENDPOINT_URL_S3", failing_store)
    fleet.start()
    fleet.end(reference, record_property)


@pytest.mark.parametrize("fleet", ["sqs"], indirect=True)
def test_sqs_delivers_every_message_twice(fleet, reference, record_property):
    fleet.aws_proxy("AWS_ENDPOINT_URL_SQS", sending_twice)
    fleet.start()
    fleet.end(reference, record_property)


class Copier:
    """Publishes each message a second time to its queue, using RabbitMQ's tracing."""

    def __init__(self, components: Components, faults: Counter[str]) -> None:
        self.components, self.faults = components, faults
        components.manage_rabbitmq("vhosts/%2f", "PUT", {"tracing": True})
        self.connection = pika.BlockingConnection(pika.URLParameters(components.amqp_url))
        self.channel = self.connection.channel()
        queue = self.channel.queue_declare("", exclusive=True).method.queue
        self.channel.queue_bind(queue, "amq.rabbitmq.trace", "publish.#")
        self.channel.basic_consume(queue, self.copy, auto_ack=True)
        self.thread = threading.Thread(target=self.channel.start_consuming, daemon=True)
        self.thread.start()

    def copy(self, channel, method, properties, body) -> None:
        told = properties.headers
        if "copy" in (told["properties"].get("headers") or {}):
            return
        for queue in told["routing_keys"]:
            channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, headers={"copy": True}))
            self.faults["messages sent twice"] += 1

    def close(self) -> None:
        self.connection.add_callback_threadsafe(self.channel.stop_consuming)
        self.thread.join()
        self.connection.close()
        self.components.manage_rabbitmq("vhosts/%2f", "PUT", {"tracing": False})


@in_one_process
def test_rabbitmq_delivers_every_message_twice(own_fleet, own_rabbitmq, reference, record_property):
    copier = Copier(own_rabbitmq, own_fleet.faults)
    try:
        own_fleet.start()
        own_fleet.end(reference, record_property)
    finally:
        copier.close()


@both
def test_purged_task_queue_and_retry(fleet, reference, record_property):
    fleet.start()
    fleet.target.purge("tasks")
    fleet.faults["purges of the task queue"] += 1
    before = fleet.runs()
    assert before < COUNT // 2, "there was little left to purge"
    fleet.target.command("retry", fleet.job_id, "--republish", expect=0)
    fleet.wait_for_runs(before + COUNT // 4)
    fleet.end(reference, record_property)
