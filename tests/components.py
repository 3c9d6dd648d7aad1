"""The real queues and stores that tests run against, as scripts/up starts them: LocalStack, RabbitMQ, moto.

A test that needs one fails when it is down.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import boto3

ROOT = Path(__file__).resolve().parent.parent
HOW = "start them with `scripts/up localstack rabbitmq moto`, then `. ~/.cache/gristmill/components/environment`"
PORTS = {"localstack": [4566], "moto": [5566], "rabbitmq": [5672, 14369, 15672, 25672]}


class Components:
    """What one `scripts/up` has started, as its file `environment` tells."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.aws_endpoint = self._given("GRISTMILL_TEST_AWS_ENDPOINT")
        self.amqp_url = self._given("GRISTMILL_TEST_AMQP_URL")
        self.moto_endpoint = self._given("GRISTMILL_TEST_MOTO_ENDPOINT")
        self._management = self._given("GRISTMILL_TEST_AMQP_MANAGEMENT")

    def _given(self, name: str) -> str:
        value = self.environment.get(name)
        if not value:
            raise AssertionError(f"{name} is not set, so there are no components to test with: {HOW}")
        return value

    @classmethod
    def from_environment(cls) -> Components:
        return cls(dict(os.environ))

    @classmethod
    def start(cls, names: list[str], folder: Path, port_shift: int) -> Components:
        """Starts a set of its own, for a test that stops or restarts one."""
        settings = {**os.environ, "GRISTMILL_COMPONENTS": str(folder), "GRISTMILL_PORT_SHIFT": str(port_shift)}
        subprocess.run([ROOT / "scripts/up", *names], env=settings, check=True, stdout=subprocess.DEVNULL)
        show = f". '{folder}/environment' && env -0"
        shown = subprocess.run(["bash", "-c", show], env=settings, check=True, capture_output=True, text=True).stdout
        return cls(dict(line.split("=", 1) for line in shown.split("\0") if line))

    def up(self, *names: str) -> None:
        """Starts these again."""
        subprocess.run([ROOT / "scripts/up", *names], env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def down(self, *names: str) -> None:
        """Stops these, or all."""
        subprocess.run([ROOT / "scripts/down", *names], env=self.environment, check=True)

    def ports(self) -> list[int]:
        """Everything that they listen on."""
        shift = int(self.environment["GRISTMILL_PORT_SHIFT"])
        return [port + shift for ports in PORTS.values() for port in ports]

    def client(self, service: str) -> Any:
        """A boto3 client of LocalStack."""
        return boto3.client(service, endpoint_url=self.aws_endpoint, **self.credentials)

    @property
    def credentials(self) -> dict[str, str]:
        return {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}

    def manage_rabbitmq(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """Asks the management plugin: its answer, or `None` if that is empty."""
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
