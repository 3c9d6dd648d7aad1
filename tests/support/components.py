"""The real queues and stores for tests, as started by scripts/up: LocalStack, RabbitMQ, moto.

A test that needs one fails when it is down.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import ClientError

from harness import ROOT, wait_until

HOW = "start them with `scripts/up localstack rabbitmq moto`, then `. ~/.cache/gristmill/components/environment`"
PORTS = {"localstack": [4566], "moto": [5566], "rabbitmq": [5672, 14369, 15672, 25672]}


def shifted(shift: int, name: str) -> list[int]:
    return [port + shift for port in PORTS[name]]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


class Components:
    """The components of one `scripts/up`, from its file `environment`."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.aws_endpoint = self._given("GRISTMILL_TEST_AWS_ENDPOINT")
        self.amqp_url = self._given("GRISTMILL_TEST_AMQP_URL")
        self._management = self._given("GRISTMILL_TEST_AMQP_MANAGEMENT")
        self._clients: dict[str, Any] = {}

    @property
    def moto_endpoint(self) -> str:
        """Of moto, which `scripts/up` starts on request alone."""
        return self._given("GRISTMILL_TEST_MOTO_ENDPOINT")

    @property
    def amqp_port(self) -> int:
        return int(self.amqp_url.partition("@")[2].partition("/")[0].rpartition(":")[2])

    def _given(self, name: str) -> str:
        value = self.environment.get(name)
        if not value:
            raise AssertionError(f"{name} is not set, so there are no components to test with: {HOW}")
        return value

    @classmethod
    def from_environment(cls) -> Components:
        return cls(dict(os.environ))

    def with_own_rabbitmq(self, folder: Path) -> Components:
        """Returns the same components with a separate RabbitMQ, which tests may restart."""
        shift = next(shift for shift in range(2000, 9000, 10) if all(map(is_free, shifted(shift, "rabbitmq"))))
        settings = {**self.environment, "GRISTMILL_COMPONENTS": str(folder), "GRISTMILL_PORT_SHIFT": str(shift)}
        amqp, management = shifted(shift, "rabbitmq")[0], shifted(shift, "rabbitmq")[2]
        settings["GRISTMILL_TEST_AMQP_URL"] = f"amqp://guest:guest@127.0.0.1:{amqp}/%2f"
        settings["GRISTMILL_TEST_AMQP_MANAGEMENT"] = f"http://guest:guest@127.0.0.1:{management}"
        components = Components(settings)
        components.up("rabbitmq")
        return components

    def up(self, *names: str) -> None:
        """Restarts these components."""
        subprocess.run([ROOT / "scripts/up", *names], env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def down(self, *names: str) -> None:
        """Stops these components, or all."""
        subprocess.run([ROOT / "scripts/down", *names], env=self.environment, check=True)

    def ports(self) -> list[int]:
        """Returns all ports on which they listen."""
        shift = int(self.environment["GRISTMILL_PORT_SHIFT"])
        return [port for name in PORTS for port in shifted(shift, name)]

    def process(self, name: str) -> int:
        """Returns the process id of a component."""
        return int((Path(self.environment["GRISTMILL_COMPONENTS"]) / f"{name}.pid").read_text().split()[0])

    def client(self, service: str) -> Any:
        """Returns a boto3 client of LocalStack, made once, because that takes a while."""
        if service not in self._clients:
            self._clients[service] = boto3.client(service, endpoint_url=self.aws_endpoint, **self.credentials)
        return self._clients[service]

    def create_target(self, kind: str, prefix: str) -> None:
        """Creates the bucket and the queues of a target, as `gristmill doctor --create` does."""
        self.client("s3").create_bucket(Bucket=prefix)
        if kind == "sqs":
            for name in ("control", "dead-letters"):
                attributes = {"MessageRetentionPeriod": "1209600", "ReceiveMessageWaitTimeSeconds": "20"}
                attributes["VisibilityTimeout"] = "60"
                self.client("sqs").create_queue(QueueName=f"{prefix}-{name}", Attributes=attributes)
            return
        for queue in json.loads((ROOT / "localstack/rabbitmq/definitions.json").read_text())["queues"]:
            body = {key: queue[key] for key in ("durable", "auto_delete", "arguments")}
            self.manage_rabbitmq(f"queues/%2F/{queue['name'].replace('gristmill', prefix)}", "PUT", body)

    def remove(self, prefix: str) -> None:
        """Removes the bucket of this name, and the queues and users of RabbitMQ and SQS whose names start with it."""
        wait_until(lambda: self._remove_bucket(prefix), "an empty bucket")
        sqs = self.client("sqs")
        for url in sqs.list_queues(QueueNamePrefix=prefix).get("QueueUrls", []):
            sqs.delete_queue(QueueUrl=url)
        for listed, path in (("queues/%2f?columns=name", "queues/%2f/"), ("users?columns=name", "users/")):
            for found in self.manage_rabbitmq(listed):
                if found["name"].startswith(prefix):
                    self.manage_rabbitmq(path + urllib.parse.quote(found["name"], safe=""), "DELETE")

    def _remove_bucket(self, name: str) -> bool:
        """Returns whether the bucket is absent; requests of a killed role may take effect after a listing."""
        s3 = self.client("s3")
        with contextlib.suppress(s3.exceptions.NoSuchBucket):
            while listed := s3.list_objects_v2(Bucket=name).get("Contents"):
                keys = [{"Key": item["Key"]} for item in listed]
                s3.delete_objects(Bucket=name, Delete={"Objects": keys, "Quiet": True})
            try:
                s3.delete_bucket(Bucket=name)
            except ClientError as error:
                if error.response["Error"]["Code"] != "BucketNotEmpty":
                    raise
                return False
        return True

    @property
    def environment_of_aws(self) -> dict[str, str]:
        """Returns the variables with which a command uses LocalStack."""
        names = {name.upper(): value for name, value in self.credentials.items() if name != "region_name"}
        return {**names, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": self.aws_endpoint}

    @property
    def credentials(self) -> dict[str, str]:
        return {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}

    def manage_rabbitmq(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """Sends a request to the management plugin, and returns its answer, or `None` if that is empty."""
        address = urllib.parse.urlsplit(self._management)
        request = urllib.request.Request(
            f"http://{address.hostname}:{address.port}/api/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
        )
        login = f"{address.username}:{address.password}".encode()
        request.add_header("Authorization", "Basic " + base64.b64encode(login).decode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None
