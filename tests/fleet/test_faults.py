"""Exactly one set of rows per mini-batch, under faults of processes, brokers, networks and the store.

Every test runs one job with three workers and a reducer as real processes, does something bad to them while it runs,
and then looks at what counts: the final file equals that of an undisturbed run, byte for byte, and the report adds up.
One mini-batch waits for a gate, so that the job is open for as long as there are faults. What is drawn is drawn from a
seed. Each test prints its faults, the mini-batches that ran, their attempts and the duplicates that were dropped.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter

import pika
import pytest

from components import Components
from faulty_fleet import COUNT, LEASE_SECONDS, GatedFleet
from harness import wait_until
from proxy import failing_store, sending_twice

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="session")
def own_rabbitmq(components: Components, tmp_path_factory: pytest.TempPathFactory):
    """A RabbitMQ that tests may restart, and whose messages they may observe."""
    own = components.with_own_rabbitmq(tmp_path_factory.mktemp("rabbitmq"))
    yield own
    own.down()


@pytest.fixture
def own_fleet(workplace, own_rabbitmq, record_property):
    fleet = GatedFleet("rabbitmq", workplace, own_rabbitmq, record_property)
    yield fleet
    fleet.close()


both = pytest.mark.parametrize("fleet", ["sqs", "rabbitmq"], indirect=True)
# So that one RabbitMQ of their own is enough.
in_one_process = pytest.mark.xdist_group("rabbitmq")


@both
def test_worker_killed_every_second(fleet):
    workers, _ = fleet.start()
    for _ in range(12):
        fleet.random.choice(workers).restart()
        fleet.faults["workers killed"] += 1
        time.sleep(1)
    fleet.end()


@both
def test_worker_stopped_past_its_lease(fleet):
    workers, _ = fleet.start()
    for worker in workers[:2]:
        worker.send(signal.SIGSTOP)
    time.sleep(3.5 * LEASE_SECONDS)
    for worker in workers[:2]:
        worker.send(signal.SIGCONT)
        fleet.faults["workers stopped past their lease"] += 1
    fleet.end()


@both
def test_reducer_killed_repeatedly(fleet):
    _, reducer = fleet.start()
    for _ in range(6):
        time.sleep(fleet.random.uniform(0.5, 2))
        reducer.restart()
        fleet.faults["reducers killed"] += 1
    fleet.end()


@both
def test_several_reducers_serve_one_job(fleet):
    _, reducer = fleet.start()
    fleet.role("reducer")
    fleet.wait_for_runs(COUNT // 2)
    fleet.role("reducer")
    reducer.kill()
    fleet.faults.update({"reducers too many": 2, "reducers killed": 1})
    fleet.end()


@in_one_process
def test_rabbitmq_restart(own_fleet, own_rabbitmq):
    own_fleet.start()
    own_rabbitmq.down("rabbitmq")
    own_rabbitmq.up("rabbitmq")
    own_fleet.faults["restarts of RabbitMQ"] += 1
    own_fleet.wait_for_runs(own_fleet.runs() + 50)
    os.killpg(own_rabbitmq.process("rabbitmq"), signal.SIGKILL)
    own_rabbitmq.down("rabbitmq")
    own_rabbitmq.up("rabbitmq")
    own_fleet.faults["kills of RabbitMQ"] += 1
    own_fleet.end()


@both
def test_network_cut_between_worker_and_queue(fleet):
    proxy, far = fleet.way_to_queue()
    # There is work while the network is cut.
    fleet.workplace.environment["SLEEP"] = "0.1"
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
    fleet.end()


@both
def test_store_fails_one_request_in_ten_and_stalls_others(fleet):
    fleet.aws_proxy("AWS_ENDPOINT_URL_S3", failing_store)
    fleet.start()
    fleet.end()


@pytest.mark.parametrize("fleet", ["sqs"], indirect=True)
def test_sqs_delivers_every_message_twice(fleet):
    fleet.aws_proxy("AWS_ENDPOINT_URL_SQS", sending_twice)
    fleet.start()
    fleet.end()


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
def test_rabbitmq_delivers_every_message_twice(own_fleet, own_rabbitmq):
    copier = Copier(own_rabbitmq, own_fleet.faults)
    try:
        own_fleet.start()
        own_fleet.end()
    finally:
        copier.close()
