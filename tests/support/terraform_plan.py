"""Real Terraform plans of the roots of infra/, with the real provider, in a moto account.

Plans only read: the network, types of instances, the identity of the account. `settled` invents
values that only AWS knows (ARNs, addresses), so that a second plan knows everything that depends on them, and shows the
effect of a change on existing resources.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from components import Components
from terraform_files import INFRA, ROOTS

REGION = "eu-central-1"
SUBNETS = ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"]
# The provider does not plan a change of a rule whose groups have changed outside of Terraform.
LEFT_OUT = ("aws_vpc_security_group_ingress_rule", "aws_vpc_security_group_egress_rule")
REATTACH = "TF_REATTACH_PROVIDERS"
# Attributes whose values are texts that other resources need.
TEXT = re.compile(r"^(arn|id|url|name|bucket|policy|assume_role_policy)$|_(arn|id|url|name)$")


@dataclass
class Plan:
    """`terraform show -json` of a plan."""

    shown: dict[str, Any]

    def resources(self, type_name: str = "", start: str = "") -> dict[str, dict[str, Any]]:
        """Returns planned values by address, of one type or all, of one module or all."""

        return {
            found["address"]: found.get("values", {})
            for found in self._every(self.shown["planned_values"]["root_module"])
            if found["mode"] == "managed" and type_name in ("", found["type"]) and found["address"].startswith(start)
        }

    def _every(self, module: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from module.get("resources", [])
        for child in module.get("child_modules", []):
            yield from self._every(child)

    def resource(self, end: str) -> dict[str, Any]:
        """Returns the only resource whose address ends with this text."""
        (values,) = [values for address, values in self.resources().items() if address.endswith(end)]
        return values

    def actions(self, type_name: str) -> dict[str, list[str]]:
        """Returns the planned actions for the resources of a type, by address."""
        changes = [change for change in self.shown["resource_changes"] if change["type"] == type_name]
        return {change["address"]: change["change"]["actions"] for change in changes}

    def containers(self) -> dict[str, dict[str, Any]]:
        """Returns the container of each task, by the name of the task."""
        tasks = self.resources("aws_ecs_task_definition").values()
        return {task["family"]: json.loads(task["container_definitions"])[0] for task in tasks}

    def output(self, name: str) -> Any:
        return self.shown["planned_values"]["outputs"][name]["value"]

    def settled(self) -> dict[str, Any]:
        """Returns a state in which all planned resources exist, with invented values for attributes that AWS sets."""
        every = self._every(self.shown["planned_values"]["root_module"])
        schema_versions = {found["address"]: found["schema_version"] for found in every}
        resources = []
        for change in self.shown["resource_changes"]:
            if change["mode"] != "managed" or change["change"]["after"] is None or change["type"] in LEFT_OUT:
                continue
            values = dict(change["change"]["after"])
            for name, unknown in change["change"]["after_unknown"].items():
                if unknown is True:
                    values[name] = made_up(change, name)
            instance = {"schema_version": schema_versions[change["address"]], "attributes": values}
            if "index" in change:
                instance["index_key"] = change["index"]
            resource = {"mode": "managed", "type": change["type"], "name": change["name"], "instances": [instance]}
            resource["provider"] = 'provider["registry.terraform.io/hashicorp/aws"]'
            if "module_address" in change:
                resource["module"] = change["module_address"]
            resources.append(resource)
        return {
            "version": 4,
            "terraform_version": "1.11.4",
            "serial": 1,
            "lineage": str(uuid.uuid4()),
            "resources": resources,
        }


def made_up(change: dict[str, Any], name: str) -> Any:
    own = f"{change['type'].removeprefix('aws_')}-{change['name']}-{change.get('index', '')}".strip("-")
    if change["type"] == "aws_mq_broker" and name == "instances":
        return [{"endpoints": [f"amqps://b-1.mq.{REGION}.amazonaws.com:5671"], "console_url": None, "ip_address": None}]
    if name == "latest_revision":
        return 1
    if name == "repository_url":
        return f"123456789012.dkr.ecr.{REGION}.amazonaws.com/{change['change']['after']['name']}"
    if name == "arn" and change["type"] == "aws_cloudwatch_log_group":
        return f"arn:aws:logs:{REGION}:123456789012:log-group:{change['change']['after']['name']}"
    if name == "arn" and change["type"] == "aws_secretsmanager_secret":
        return f"arn:aws:secretsmanager:{REGION}:123456789012:secret:{own}"
    if name == "arn" or (name == "id" and change["type"] in ("aws_ecs_service", "aws_ecs_cluster", "aws_iam_policy")):
        return f"arn:aws:{change['type'].split('_')[1]}:{REGION}:123456789012:{own}"
    return own if TEXT.search(name) else None


class Terraform:
    """Terraform, and a copy of infra/ whose roots have the provider's plugin: from a mirror on this machine, or from
    the registry. The test is skipped where there is neither."""

    def __init__(self, folder: Path, components: Components) -> None:
        program = shutil.which("terraform") or shutil.which("tofu")
        if not program:
            pytest.skip("neither terraform nor tofu is installed")
        self.program, self.infra, self.components = program, folder / "infra", components
        ignored = shutil.ignore_patterns(".terraform*", "*.tfstate*", "*.tfvars")
        shutil.copytree(INFRA, self.infra, ignore=ignored)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TF_"))},
            "TF_IN_AUTOMATION": "1",
            "CHECKPOINT_DISABLE": "1",
            "AWS_ENDPOINT_URL": components.moto_endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self.mirrors = [f"-plugin-dir={path.parent}" for path in Path("/opt").glob("*/registry.terraform.io")]
        for path in ROOTS:
            versions = path / "versions.tf"
            if versions.exists() and 'backend "' in versions.read_text():
                # Tests always keep the state in a file.
                (self.root(path) / "backend_override.tf").write_text('terraform {\n  backend "local" {}\n}\n')
            self.init(self.root(path))
        self.provider = self._start_provider()

    def _start_provider(self) -> subprocess.Popen[str]:
        """Starts the provider for all commands: one of their own takes each of them seconds to start."""
        installed = self.infra / "examples/localstack/.terraform/providers"
        program = next(installed.glob("*/hashicorp/aws/*/*/terraform-provider-aws_v*"))
        provider = subprocess.Popen(
            # It ends with these tests, also if they are killed.
            ["setpriv", "--pdeathsig", "KILL", program, "-debug"],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert provider.stdout is not None
        told = next((line for line in provider.stdout if f"{REATTACH}='" in line), "")
        assert told, "the provider does not start"
        self.environment[REATTACH] = told.split("'")[1]
        return provider

    def close(self) -> None:
        """Ends the provider."""
        self.provider.kill()
        self.provider.wait()

    def root(self, path: Path) -> Path:
        return self.infra / path.relative_to(INFRA)

    def init(self, where: Path) -> None:
        command = [self.program, "init", "-input=false", "-no-color", *self.mirrors]
        done = subprocess.run(command, cwd=where, env=self.environment, capture_output=True, text=True, timeout=110)
        if "Failed to query available provider packages" in done.stderr:
            pytest.skip("the plugin of the AWS provider is neither on this machine nor can it be downloaded")
        assert done.returncode == 0, done.stderr

    def run(self, where: Path, *arguments: str, expect: int = 0, **environment: str) -> str:
        done = subprocess.run(
            [self.program, *arguments],
            cwd=where,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout if expect == 0 else " ".join((done.stdout + done.stderr).replace("│", "").split())

    def plan(
        self,
        root: str,
        variables: dict[str, Any],
        state: dict[str, Any] | None = None,
        options: list[str] | None = None,
    ) -> Plan:
        """Returns the plan of a root; with `state`, of a change to existing resources."""
        where, name = self.infra / root, uuid.uuid4().hex
        (where / f"{name}.tfvars.json").write_text(json.dumps(variables))
        (where / f"{name}.tfstate").write_text(json.dumps(state) if state else "")
        arguments = ["-input=false", "-no-color", "-refresh=false", f"-var-file={name}.tfvars.json", *(options or [])]
        self.run(where, "plan", *arguments, f"-state={name}.tfstate", f"-out={name}")
        return Plan(json.loads(self.run(where, "show", "-json", name)))

    def refusal(self, root: str, variables: dict[str, Any]) -> str:
        """Returns Terraform's errors about these variables."""
        where, name = self.infra / root, uuid.uuid4().hex
        (where / f"{name}.tfvars.json").write_text(json.dumps(variables))
        return self.run(where, "plan", "-input=false", "-no-color", f"-var-file={name}.tfvars.json", expect=1)

    def apply(self, root: str, variables: dict[str, str]) -> dict[str, Any]:
        """Applies a root and returns its outputs."""
        where = self.infra / root
        arguments = [f"-var={name}={value}" for name, value in variables.items()]
        # With a provider of its own: the root names the addresses itself.
        own = {REATTACH: "", "AWS_ENDPOINT_URL": ""}
        self.run(where, "apply", "-auto-approve", "-no-color", "-input=false", *arguments, **own)
        outputs = json.loads(self.run(where, "output", "-json"))
        return {name: output["value"] for name, output in outputs.items()}

    def platform(self, platform: dict[str, Any]) -> str:
        """Stores the data of a platform for targets and returns its name."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        self.client("ssm").put_parameter(Name=f"/gristmill/platforms/{name}", Value=json.dumps(platform), Type="String")
        return name

    def in_network(self, text: str) -> str:
        """Returns the text with the network of the account."""
        (vpc,) = self.client("ec2").describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
        return text.replace("vpc-of-the-account", vpc["VpcId"])

    def client(self, service: str) -> Any:
        credentials = {**self.components.credentials, "region_name": REGION}
        return boto3.client(service, endpoint_url=self.components.moto_endpoint, **credentials)
