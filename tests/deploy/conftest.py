"""Plans of Terraform, which several files test; the xdist group `terraform` keeps those in one process."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

import terraform_variants
from components import Components
from terraform_plan import SUBNETS, Plan, Terraform
from terraform_variants import BOUNDARY, PLATFORM, Plans


@pytest.fixture(scope="session")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terraform]:
    terraform = Terraform(tmp_path_factory.mktemp("terraform"), Components.from_environment())
    yield terraform
    terraform.close()


# What the targets of terraform_variants.py have besides, at first and after the change: settings of scaling and alarms.
SCALING: dict[str, dict[str, dict[str, Any]]] = {"large": {"worker": {"processes": 3}}}
CHANGED_SCALING: dict[str, dict[str, dict[str, Any]]] = {
    **SCALING,
    "sqs": {
        "worker": {"processes": 10, "requires": ["any", "label zone=a"]},
        "alarm_thresholds": {"no_worker_minutes": 60},
    },
    "gpus": {"worker": {"gpus": 2}},
}


def set_besides(variants: dict[str, Any], settings: dict[str, dict[str, dict[str, Any]]]) -> None:
    for name, objects in settings.items():
        module, arguments = copy.deepcopy(variants[name])
        for field, values in objects.items():
            arguments["target"].setdefault(field, {}).update(values)
        variants[name] = module, arguments


@pytest.fixture(scope="session")
def plans(terraform: Terraform) -> Plans:
    set_besides(terraform_variants.EVERYTHING, SCALING)
    set_besides(terraform_variants.CHANGED, CHANGED_SCALING)
    return Plans(terraform)


@pytest.fixture(scope="session")
def made(plans: Plans) -> Plan:
    return plans.made


@pytest.fixture(scope="session")
def changed(plans: Plans) -> Plan:
    return plans.changed


@pytest.fixture(scope="session")
def environments(terraform: Terraform) -> dict[str, Plan]:
    """Plans of the roots in infra/environments."""
    boundary = {"permissions_boundary_arn": BOUNDARY}
    fleet = {"name": "fleet", "vpc_id": "vpc-1", "subnet_ids": SUBNETS, **boundary}
    team = {"name": "team", "bucket": "team-store", **boundary}
    variables: dict[str, dict[str, Any]] = {
        "dev": {"image_tag": "1", "target": boundary},
        "platform": {"platform": fleet},
        "prod": {"platform": terraform.platform(PLATFORM), "image_tag": "1", "target": team},
    }
    tags = {"tags": {"CostCenter": "7"}}
    return {name: terraform.plan(f"environments/{name}", {**given, **tags}) for name, given in variables.items()}
