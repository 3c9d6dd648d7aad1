"""Plans of Terraform, which several files test; the xdist group `terraform` keeps those in one process."""

from __future__ import annotations

import pytest

from components import Components
from terraform_plan import SUBNETS, Plan, Terraform
from terraform_variants import BOUNDARY, PLATFORM, Plans


@pytest.fixture(scope="session")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> Terraform:
    return Terraform(tmp_path_factory.mktemp("terraform"), Components.from_environment())


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
    everywhere = {"permissions_boundary_arn": BOUNDARY, "tags": {"CostCenter": "7"}}
    place = {"vpc_id": "vpc-1", "subnet_ids": SUBNETS}
    team = {"name": "team", "platform": terraform.platform(PLATFORM), "bucket": "team-store", "image_tag": "1"}
    variables = {"dev": {"image_tag": "1"}, "platform": {"name": "fleet", **place}, "prod": team}
    return {name: terraform.plan(f"environments/{name}", {**given, **everywhere}) for name, given in variables.items()}
