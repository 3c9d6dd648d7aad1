"""Plans of Terraform, which several files test; the xdist group `terraform` keeps those in one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from components import Components
from terraform_plan import SUBNETS, Plan, Terraform
from terraform_variants import BOUNDARY, PLATFORM, Plans


@pytest.fixture(scope="session")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terraform]:
    terraform = Terraform(tmp_path_factory.mktemp("terraform"), Components.from_environment())
    yield terraform
    terraform.close()


@pytest.fixture(scope="session")
def plans(terraform: Terraform) -> Plans:
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
