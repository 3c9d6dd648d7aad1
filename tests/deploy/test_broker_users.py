"""scripts/broker-users: restricted users on a real RabbitMQ, their rotation, and a stand-in for Secrets Manager."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from components import Components
from harness import ROOT, Workplace, wait_until
from portal_client import Portal

FIRST = "the-f1rst-p@ssword"
# A folder as Secrets Manager, which fails at write number BREAKS_AT.
AWS = """#!/usr/bin/env bash
set -eu
[ "$1 $3 $4 $5" = "secretsmanager --region eu-central-1 --secret-id" ]
file=$SECRETS/${6##*:}
case $2 in
    get-secret-value) cat "$file" 2>/dev/null || { echo "ResourceNotFoundException" >&2 && exit 254; } ;;
    put-secret-value)
        echo x >>"$SECRETS/writes"
        [ "$(wc -l <"$SECRETS/writes")" != "${BREAKS_AT:-0}" ] || { echo "broken" >&2 && exit 1; }
        cat >"$file" ;;
esac
"""


class Broker:
    """A target on the tests' RabbitMQ, like that of the module `rabbitmq`."""

    def __init__(self, components: Components, workplace: Workplace) -> None:
        self.components, self.workplace, self.folder = components, workplace, workplace.folder
        self.prefix = f"users-{uuid.uuid4().hex[:12]}"
        self.secrets = self.folder / "secrets"
        self.secrets.mkdir()
        (self.folder / "bin").mkdir()
        (self.folder / "bin/aws").write_text(AWS)
        (self.folder / "bin/aws").chmod(0o755)
        # A separate administrator, so that other tests keep their password.
        self.administrator = f"{self.prefix}-administrator"
        components.manage_rabbitmq(f"users/{self.administrator}", "PUT", {"password": FIRST, "tags": "administrator"})
        components.manage_rabbitmq(
            f"permissions/%2F/{self.administrator}", "PUT", dict.fromkeys(["configure", "write", "read"], ".*")
        )
        self.put("administrator", {"username": self.administrator, "password": FIRST})
        host = components.amqp_url.partition("://")[2].rpartition("@")[2]
        host = host.partition("/")[0]
        management = components.environment["GRISTMILL_TEST_AMQP_MANAGEMENT"].rpartition("@")[2]
        arn = "arn:aws:secretsmanager:eu-central-1:1:secret:"
        self.value: dict[str, Any] = {
            "management": f"http://{management}",
            "prefix": self.prefix,
            "address": f"amqp://${{BROKER_USER}}:${{BROKER_PASSWORD}}@{host}/%2f?prefix={self.prefix}&lease_seconds=86400",
            "administrator": f"{arn}administrator",
            "secrets": {role: f"{arn}{role}" for role in ("worker", "reducer", "enqueuer", "operator", "portal")},
        }
        components.client("s3").create_bucket(Bucket=self.prefix)

    def put(self, name: str, value: dict[str, str]) -> None:
        (self.secrets / name).write_text(json.dumps(value))

    def secret(self, role: str) -> dict[str, str]:
        return json.loads((self.secrets / role).read_text())

    def run(self, command: str, expect: int = 0, **environment: str) -> str:
        done = subprocess.run(
            # pyenv would prepend its own folders.
            [sys.executable, ROOT / "scripts/broker-users", command],
            input=json.dumps({"broker": {"value": self.value}}),
            env={
                **os.environ,
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "SECRETS": str(self.secrets),
                **environment,
            },
            capture_output=True,
            text=True,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        known = [json.loads(file.read_text())["password"] for file in self.secrets.iterdir() if file.name != "writes"]
        assert not any(password in done.stdout + done.stderr for password in known)
        return done.stdout + done.stderr

    def role(self, role: str) -> dict[str, str]:
        """Returns the environment of a process of that role."""
        return {
            **self.components.environment_of_aws,
            "GRISTMILL_QUEUE": self.secret(role)["address"],
            "GRISTMILL_STORE": f"s3://{self.prefix}/jobs",
        }

    def start(self, role: str):
        return self.workplace.role(role, **self.role(role))

    def users(self) -> set[str]:
        found = {user["name"] for user in self.components.manage_rabbitmq("users")}
        return {name for name in found if name.startswith(self.prefix)} - {self.administrator}


@pytest.fixture
def broker(components: Components, workplace: Workplace) -> Iterator[Broker]:
    broker = Broker(components, workplace)
    yield broker
    workplace.kill_what_still_runs()
    components.remove(broker.prefix)


def run_job(broker: Broker) -> None:
    # More than the default of 30 minutes.
    job = broker.workplace.job(
        "def run(files):\n    return [open(file).read() for file in files]\n", run_invocation_timeout=3600
    )
    ended = broker.workplace.command("enqueue", job.file, "--wait", **broker.role("enqueuer"))
    assert ended.exit_status == 0, str(ended)


def refused(address: str, act: Any) -> bool:
    """Returns whether the broker rejects the action of this user."""
    connection = pika.BlockingConnection(pika.URLParameters(address.partition("?")[0]))
    try:
        act(connection.channel())
    except pika.exceptions.ChannelClosedByBroker as error:
        assert error.reply_code == 403, error
        return True
    finally:
        if connection.is_open:
            connection.close()
    return False


def test_role_users_can_run_a_job_and_nothing_else(broker: Broker) -> None:
    broker.run("create")
    assert len(broker.users()) == 5
    assert broker.secret("administrator")["password"] != FIRST
    made = broker.workplace.command("doctor", "--create", **broker.role("operator"))
    assert made.exit_status == 0, str(made)
    broker.workplace.data(3)
    roles = [broker.start("worker"), broker.start("reducer")]
    run_job(broker)
    letters = broker.workplace.command("dead-letters", **broker.role("operator"))
    assert letters.exit_status == 0, str(letters)
    shown = Portal(broker.workplace, "--read-only", **broker.role("portal")).get("/target")
    assert shown["queues"] and not [queue for queue in shown["queues"] if queue["problem"]], shown
    assert shown["dead_letters_problem"] is None, shown
    for running in roles:
        running.stop()


# What each role may do with which queues, besides publishing. To declare includes to delete, to get includes to purge.
MAY = {
    "worker": {("declare", "control"), ("declare", "dead-letters"), ("get", "tasks"), ("get", "doctor-tasks")},
    "reducer": {
        *(("declare", queue) for queue in ("control", "dead-letters", "tasks", "results", "doctor-tasks")),
        *(("get", queue) for queue in ("control", "tasks", "results", "doctor-tasks")),
    },
    "enqueuer": {("declare", "control"), ("declare", "dead-letters")},
    "operator": {
        *(("declare", queue) for queue in ("control", "dead-letters", "doctor-tasks")),
        *(("get", queue) for queue in ("dead-letters", "doctor-tasks")),
    },
    "portal": {("declare", "control"), ("declare", "dead-letters"), ("get", "dead-letters")},
}


def test_users_have_the_rights_of_their_role(broker: Broker) -> None:
    broker.run("create")
    prefix = broker.prefix
    names = {
        **{end: f"{prefix}-{end}" for end in ("control", "dead-letters")},
        **{end: f"{prefix}-a-job.1-{end}" for end in ("tasks", "results")},
        "doctor-tasks": f"{prefix}-doctor-0.0-tasks",
        "other": f"{prefix}-other",
        "of another target": f"{prefix}2-a-job.1-tasks",
    }
    quorum = {"x-queue-type": "quorum"}
    # As reducers create them: messages of jobs that are delivered too often go to the dead letters.
    of_jobs = {**quorum, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": names["dead-letters"]}

    def declare(channel: Any, end: str, passive: bool = False) -> None:
        arguments = of_jobs if end.endswith(("tasks", "results")) else quorum
        channel.queue_declare(names[end], durable=True, passive=passive, arguments=arguments)

    # Who creates a queue of a job may also read it.
    reducer = broker.secret("reducer")["address"]
    for end in ("dead-letters", "control", "tasks", "results", "doctor-tasks"):
        assert not refused(reducer, lambda channel, end=end: declare(channel, end)), end
    connection = pika.BlockingConnection(pika.URLParameters(broker.components.amqp_url))
    for end in ("other", "of another target"):
        declare(connection.channel(), end)
    connection.close()

    for role in broker.value["secrets"]:
        address = broker.secret(role)["address"]
        may = set()
        for end, name in names.items():
            if not refused(address, lambda channel, end=end: declare(channel, end)):
                may.add(("declare", end))
            if not refused(address, lambda channel, name=name: channel.basic_get(name)):
                may.add(("get", end))
            assert not refused(address, lambda channel, end=end: declare(channel, end, passive=True)), (role, end)
        assert may == MAY[role], role
        assert not refused(address, lambda channel: channel.basic_publish("", names["tasks"], b"x")), role
        deletes = {end for action, end in may if action == "declare"}
        tried = ["other", "of another target", *({"tasks", "results"} - deletes)]
        assert all(refused(address, lambda channel, end=end: channel.queue_delete(names[end])) for end in tried), role
        tags = broker.components.manage_rabbitmq(f"users/{broker.secret(role)['username']}")["tags"]
        assert tags in ([], "", "management", ["management"]) and (bool(tags) == (role == "operator"))
    for end in ("tasks", "results"):
        assert not refused(reducer, lambda channel, end=end: channel.queue_delete(names[end])), end
    broker.components.manage_rabbitmq(f"queues/%2F/{names['of another target']}", "DELETE")


def test_target_whose_users_could_use_the_queues_of_another_is_rejected(broker: Broker) -> None:
    first, prefix = broker.secret("administrator"), f"{broker.prefix}-b"
    broker.value["prefix"] = prefix

    def run_beside(*queues: str, expect: int = 0) -> str:
        path = "queues/%2F/"
        for name in queues:
            body = {"durable": True, "arguments": {"x-queue-type": "quorum"}}
            broker.components.manage_rabbitmq(path + name, "PUT", body)
        try:
            return broker.run("create", expect=expect)
        finally:
            for name in queues:
                broker.components.manage_rabbitmq(path + name, "DELETE")

    for other in (f"{prefix}-c", broker.prefix):
        told = run_beside(f"{other}-control", expect=1)
        assert f"the queues of {other}, " in told and f"Choose a name for {prefix}" in told
    assert not broker.users() and broker.secret("administrator") == first, "nothing was changed"
    # Its own queues, and those of a job; targets whose names only begin with the same letters.
    run_beside(f"{prefix}-control", f"{prefix}-control-room.1-tasks", f"{prefix}2-control", f"{prefix}_a-control")


def test_users_rotate_while_a_worker_is_connected(broker: Broker) -> None:
    broker.run("create")
    made = broker.workplace.command("doctor", "--create", **broker.role("operator"))
    assert made.exit_status == 0, str(made)
    broker.workplace.data(3)
    first = {role: broker.secret(role) for role in broker.value["secrets"]}
    before = [broker.start("worker"), broker.start("reducer")]
    # Users of the same second are the same users.
    name = first["worker"]["username"]
    wait_until(lambda: broker.run("create") and broker.secret("worker")["username"] != name, "other users")
    run_job(broker)
    old = {user["username"] for user in first.values()}
    wait_until(lambda: first["worker"]["username"] in connected(broker), "the worker in the list of connections")
    told = broker.run("retire", expect=1)
    assert "still connected" in told and first["worker"]["username"] in told and "enqueuer" not in told
    assert old <= broker.users(), "nothing was removed"

    after = [broker.start("worker"), broker.start("reducer")]
    for running in before:
        running.stop()
    wait_until(lambda: not old & connected(broker), "the end of old connections")
    assert first["enqueuer"]["username"] in broker.run("retire")
    assert broker.users() == {broker.secret(role)["username"] for role in first}
    run_job(broker)
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(pika.URLParameters(first["worker"]["address"].partition("?")[0]))
    assert "There are no users of an earlier" in broker.run("retire")
    for running in after:
        running.stop()


def connected(broker: Broker) -> set[str]:
    return {connection.get("user") for connection in broker.components.manage_rabbitmq("connections")}


@pytest.mark.parametrize("write", range(1, 8))
def test_interrupted_creation_can_run_again(write: int, broker: Broker) -> None:
    told = broker.run("create", expect=1, BREAKS_AT=str(write))
    assert "cannot write the secret" in told
    broker.run("create")
    broker.run("retire")
    assert broker.users() == {broker.secret(role)["username"] for role in broker.value["secrets"]}
    login = broker.secret("administrator")
    assert login.keys() == {"username", "password"} and login["password"] != FIRST


def test_failures_are_reported_in_one_line(broker: Broker) -> None:
    assert "run `scripts/broker-users create` first" in broker.run("retire", expect=1)
    reached = broker.value["management"]
    broker.value["management"] = "http://127.0.0.1:9"
    assert "cannot reach http://127.0.0.1:9" in broker.run("create", expect=1)
    broker.value["management"] = reached
    broker.put("administrator", {"username": broker.administrator, "password": "a-wr0ng-p@ssword"})
    assert "the broker refuses the password" in broker.run("create", expect=1)
    broker.value = None
    assert "the queues of this target are at SQS" in broker.run("create", expect=1)
