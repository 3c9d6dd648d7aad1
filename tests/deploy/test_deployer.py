"""infra/modules/deployer: the rights of those who run `terraform apply`, for all types of one target's resources."""

from __future__ import annotations

import json
import re
from typing import Any

import botocore.session
import pytest

from iam_gate import is_allowed
from terraform_files import INFRA, MODULES, text_of
from terraform_plan import Terraform
from terraform_variants import BOUNDARY, KEY

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("terraform")]

ACCOUNT = "123456789012"
TEAM = {
    "names": ["team-a"],
    "buckets": ["team-a-store"],
    "kms_key_arns": [KEY],
    "state": "states/team-a.tfstate*",
    "permissions_boundary_arn": BOUNDARY,
}
# They ask no service for anything that needs a right.
WITHOUT_REQUESTS = {
    "data.aws_caller_identity",
    "data.aws_default_tags",
    "data.aws_iam_policy_document",
    "data.aws_partition",
    "data.aws_region",
}


def planned(terraform: Terraform, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns one document with the statements of all policies, and the actions by type."""
    plan = terraform.plan("examples/deployer", {"deployer": settings})
    policies = [json.loads(found["policy"]) for found in plan.resources("aws_iam_policy").values()]
    assert all(len(json.dumps(policy, separators=(",", ":"))) <= 6144 for policy in policies)
    statements = [one for policy in policies for one in policy["Statement"]]
    return {"policy": {"Statement": statements}, "actions": plan.output("actions")}


@pytest.fixture(scope="module")
def deployer(terraform: Terraform) -> dict[str, Any]:
    return planned(terraform, TEAM)


def test_every_type_of_resource_is_covered_and_no_other(deployer: dict[str, Any]) -> None:
    roots = sorted(path.parent for path in (INFRA / "environments").glob("*/main.tf"))
    text = "".join(text_of(path) for path in (*MODULES, *roots))
    blocks = re.findall(r'^(resource|data) "(aws_\w+)"', text, re.MULTILINE)
    used = {name if kind == "resource" else f"data.{name}" for kind, name in blocks}
    listed = set(deployer["actions"]) - {"scripts/deploy"}
    assert listed == used - WITHOUT_REQUESTS


def test_actions_exist(deployer: dict[str, Any]) -> None:
    """Most actions have the name of a request; botocore does not know the rest."""
    services = {"application-autoscaling", "autoscaling", "batch", "ecr", "ecs", "events", "iam", "kms", "logs", "mq"}
    services |= {"ec2", "secretsmanager", "sns", "sqs", "ssm"}
    rights = {"ec2:CreateNetworkInterfacePermission", "iam:PassRole"}
    session = botocore.session.get_session()
    checked = 0
    for service, name in {tuple(action.split(":")) for actions in deployer["actions"].values() for action in actions}:
        if service in services and f"{service}:{name}" not in rights:
            assert name in session.get_service_model(service).operation_names, (service, name)
            checked += 1
    assert checked > 120


def arn(service: str, rest: str, region: str = "eu-central-1") -> str:
    return f"arn:aws:{service}:{region}:{ACCOUNT}:{rest}"


def of_target(name: str) -> list[tuple[str, str, dict[str, str]]]:
    """Returns requests of an apply for a target and its platform, each on a resource with the target's name."""
    role = f"arn:aws:iam::{ACCOUNT}:role/{name}-worker-task"
    return [
        ("sqs:CreateQueue", arn("sqs", f"{name}-control"), {}),
        ("s3:PutBucketPolicy", f"arn:aws:s3:::{name}-store", {}),
        ("s3:DeleteObject", f"arn:aws:s3:::{name}-store/jobs/one", {}),
        ("s3:PutObject", f"arn:aws:s3:::states/{name}.tfstate.tflock", {}),
        ("iam:CreateRole", role, {"iam:PermissionsBoundary": BOUNDARY}),
        ("iam:PutRolePolicy", role, {"iam:PermissionsBoundary": BOUNDARY}),
        ("iam:PassRole", role, {"iam:PassedToService": "ecs-tasks.amazonaws.com"}),
        ("iam:CreatePolicyVersion", f"arn:aws:iam::{ACCOUNT}:policy/{name}-worker", {}),
        ("ecs:UpdateService", arn("ecs", f"service/fleet/{name}-worker-cpu"), {}),
        ("ecs:RegisterTaskDefinition", arn("ecs", f"task-definition/{name}-reducer:7"), {}),
        ("cloudwatch:PutMetricAlarm", arn("cloudwatch", f"alarm:{name}-dead-letters"), {}),
        ("logs:PutRetentionPolicy", arn("logs", f"log-group:/gristmill/{name}:*"), {}),
        ("sns:CreateTopic", arn("sns", f"{name}-alarms"), {}),
        ("secretsmanager:CreateSecret", arn("secretsmanager", f"secret:{name}-broker-worker-AbCdEf"), {}),
        ("mq:DeleteBroker", arn("mq", f"broker:{name}:b-1"), {}),
        ("ecr:PutImage", arn("ecr", f"repository/{name}/gristmill"), {}),
        ("kms:CreateAlias", arn("kms", f"alias/{name}"), {}),
        ("batch:UpdateJobQueue", arn("batch", f"job-queue/{name}"), {}),
        ("ssm:PutParameter", arn("ssm", f"parameter/gristmill/platforms/{name}"), {}),
    ]


def test_deployer_may_change_its_own_target_alone(deployer: dict[str, Any]) -> None:
    for name, expected in (("team-a", True), ("team-b", False), ("admin", False)):
        for action, resource, context in of_target(name):
            assert is_allowed(deployer["policy"], action, resource, context=context) == expected, (action, resource)


def test_every_action_is_allowed_somewhere(deployer: dict[str, Any]) -> None:
    granted = {
        action
        for statement in deployer["policy"]["Statement"]
        for action in ([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])
    }
    listed = {action for actions in deployer["actions"].values() for action in actions}
    assert (granted - listed, listed - granted) == ({"s3:GetObject", "s3:PutObject"}, set()), "those of the state"
    assert not [action for action in granted if "*" in action]


def test_deployer_cannot_exceed_the_boundary(deployer: dict[str, Any]) -> None:
    role, key = f"arn:aws:iam::{ACCOUNT}:role/team-a-worker-task", arn("kms", "key/other")
    of_terraform = {"aws:ResourceTag/Application": "gristmill"}
    for action, resource, context in (
        ("iam:CreateRole", role, {}),
        ("iam:AttachRolePolicy", role, {"iam:PermissionsBoundary": "arn:aws:iam::aws:policy/AdministratorAccess"}),
        ("iam:DeleteRolePermissionsBoundary", role, {"iam:PermissionsBoundary": BOUNDARY}),
        ("iam:PassRole", role, {"iam:PassedToService": "lambda.amazonaws.com"}),
        ("iam:CreatePolicyVersion", f"arn:aws:iam::{ACCOUNT}:policy/deploy-gristmill-data", {}),
        ("iam:CreateUser", f"arn:aws:iam::{ACCOUNT}:user/team-a-me", {}),
        # Keys that Terraform has not created: no policy of theirs, no deletion.
        ("kms:PutKeyPolicy", key, {}),
        ("kms:ScheduleKeyDeletion", KEY, {}),
        ("kms:CreateKey", "*", {}),
        ("secretsmanager:GetSecretValue", arn("secretsmanager", "secret:team-a-database-AbCdEf"), {}),
    ):
        assert not is_allowed(deployer["policy"], action, resource, context=context), action
    assert is_allowed(deployer["policy"], "kms:PutKeyPolicy", key, context=of_terraform)
    assert is_allowed(deployer["policy"], "kms:CreateKey", "*", context={"aws:RequestTag/Application": "gristmill"})
    assert is_allowed(deployer["policy"], "kms:GenerateDataKey", KEY)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy_prefix": "team-a-deploy"}, "The deployer could change its own policies"),
        ({"buckets": ["*"]}, "without `*`"),
        ({"names": [f"team-{number:02}" for number in range(30)]}, "has more than the 6144 characters"),
        ({"name": "team-a"}, "Unknown fields: name"),
    ],
)
def test_wrong_settings_are_refused(change: dict[str, Any], message: str, terraform: Terraform) -> None:
    assert message in terraform.refusal("examples/deployer", {"deployer": {**TEAM, **change}})


def test_boundary_is_a_choice(terraform: Terraform) -> None:
    policy = planned(terraform, {"names": ["dev"], "buckets": ["dev-1"]})["policy"]
    assert is_allowed(policy, "iam:CreateRole", f"arn:aws:iam::{ACCOUNT}:role/dev-reducer-task")
