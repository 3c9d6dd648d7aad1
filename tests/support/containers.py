"""Containers for tests: a Docker engine, a private network with the components, and roles that run there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from components import Components
from harness import ROOT, wait_until
from proxy import Proxy

REQUIRED = "GRISTMILL_TEST_DOCKER"
"""With the value `required`, tests fail if no engine runs; otherwise they are skipped."""


class Engine:
    """A Docker engine: that of this machine, or one that ends with the tests."""

    def __init__(self, components: Components) -> None:
        self.environment = components.environment
        self.is_ours = self.run("version").returncode != 0
        started = subprocess.run(
            [ROOT / "scripts/up", "docker"], env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        if started.returncode != 0:
            reason = f"No Docker engine runs here, and none can be started: {started.stderr.decode().strip()}"
            if os.environ.get(REQUIRED) == "required":
                raise AssertionError(reason)
            pytest.skip(reason)
        self.tag = f"test-{uuid.uuid4().hex[:8]}"

    def docker(self, *arguments: object, expect: int = 0) -> str:
        """Runs a command of the client to its end and returns its output."""
        ended = self.run(*arguments)
        assert ended.returncode == expect, f"{ended.args}\n{ended.stdout}{ended.stderr}"
        return ended.stdout.strip()

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROOT / "scripts/docker", *map(str, arguments)], env=self.environment, capture_output=True, text=True
        )

    def inspect(self, kind: str, name: str) -> dict[str, Any]:
        (found,) = json.loads(self.docker(kind, "inspect", name))
        return found

    def close(self) -> None:
        """Ends the tests' own engine with all its data, or removes their objects from another one."""
        if self.is_ours:
            subprocess.run([ROOT / "scripts/down", "docker"], env=self.environment, check=True)
            data = Path(self.environment["GRISTMILL_COMPONENTS"]) / "docker"
            # The engine leaves the namespace of the last container mounted if it ends before that container.
            for mount in Path("/proc/self/mounts").read_text().splitlines():
                if (place := Path(mount.split()[1])).is_relative_to(data):
                    subprocess.run(["umount", "--lazy", place], check=True)
            shutil.rmtree(data)
            return
        for image in self.docker("image", "ls", "--quiet", "--filter", f"reference=*:{self.tag}*").split():
            self.run("image", "rm", "--force", image)


class Fleet:
    """Roles in containers on a private network, which reaches only LocalStack.

    How they run is what `infra/images/compose.yaml` says of them; the folder of the test has the same path in each.
    """

    def __init__(self, engine: Engine, components: Components, folder: Path, queue: str, store: str) -> None:
        self.engine = engine
        self.folder = folder
        self.network = f"gristmill-{uuid.uuid4().hex[:8]}"
        self.containers: list[Container] = []
        engine.docker("network", "create", "--internal", self.network)
        gateway = engine.inspect("network", self.network)["IPAM"]["Config"][0]["Gateway"]
        # LocalStack listens only on this machine.
        self.proxy = Proxy(int(components.aws_endpoint.rpartition(":")[2]), gateway)
        self.settings = {
            "GRISTMILL_QUEUE": queue,
            "GRISTMILL_STORE": store,
            "AWS_ENDPOINT_URL": f"http://{gateway}:{self.proxy.port}",
            "RECORD": str(folder / "record.jsonl"),
            "GRISTMILL_PASS_ENVIRONMENT": "RECORD",
        }
        services = YAML(typ="safe").load(ROOT / "infra/images/compose.yaml")["services"]
        self.services: dict[str, dict[str, Any]] = services
        # Tests own the folder, and the user of the images writes to it.
        folder.chmod(0o777)

    def options(self, role: str, settings: dict[str, str]) -> list[str]:
        """Returns arguments of `docker run` that are equivalent to the compose file."""
        service = self.services[role]
        environment = {**service["environment"], **self.settings, **settings}
        return [
            *(["--read-only"] if service["read_only"] else []),
            *(f"--cap-drop={name}" for name in service["cap_drop"]),
            *(f"--security-opt={option}" for option in service["security_opt"]),
            *(f"--tmpfs={mount}" for mount in service["tmpfs"]),
            *(f"--env={name}={value}" for name, value in environment.items()),
            f"--network={self.network}",
            f"--volume={self.folder}:{self.folder}",
            f"--workdir={self.folder}",
        ]

    def image(self, role: str) -> str:
        return f"{self.services[role]['image'].split(':')[0]}:{self.engine.tag}"

    def start(self, role: str, name: str, **settings: str) -> Container:
        """Starts a role; its name is also that of its machine."""
        container_id = self.engine.docker(
            "run",
            "--detach",
            f"--hostname={name}",
            "--health-interval=1s",
            *self.options(role, settings),
            self.image(role),
            *self.services[role]["command"],
        )
        self.containers.append(Container(self.engine, container_id.splitlines()[-1]))
        return self.containers[-1]

    def command(self, *arguments: object) -> str:
        """Runs a `gristmill` command to its end in a new container and returns its output."""
        return self.engine.docker("run", "--rm", *self.options("reducer", {}), self.image("reducer"), *arguments)

    def close(self) -> None:
        for container in self.containers:
            # Shown if the test has failed.
            print(f"--- {container.id}\n{container.log}")
            self.engine.docker("rm", "--force", "--volumes", container.id)
        self.engine.docker("network", "rm", self.network)
        self.proxy.close()


class Container:
    """A container that runs a role."""

    def __init__(self, engine: Engine, container_id: str) -> None:
        self.engine = engine
        self.id = container_id

    @property
    def state(self) -> dict[str, Any]:
        return self.engine.inspect("container", self.id)["State"]

    @property
    def log(self) -> str:
        ended = self.engine.run("logs", self.id)
        return ended.stdout + ended.stderr

    def wait_until_healthy(self) -> None:
        def healthy() -> bool:
            state = self.state
            assert state["Running"], f"{state}\n{self.log}"
            return state["Health"]["Status"] == "healthy"

        try:
            wait_until(healthy, "the health of a container")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.state['Health']}\n{self.log}") from None

    def python(self, program: str) -> str:
        """Runs a program beside the role in its container and returns its output."""
        return self.engine.docker("exec", self.id, "python", "-c", program)
