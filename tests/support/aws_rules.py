"""Behaviour of AWS at an apply that no schema describes: a table of rules, each with its source.

A rule looks at the planned values of one resource, and says whether AWS would refuse them. `refused` is an example that
the rule must refuse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Values = dict[str, Any]
PROVIDER = "https://github.com/hashicorp/terraform-provider-aws/blob/v5.100.0"
ECS = "https://docs.aws.amazon.com/AmazonECS/latest/developerguide"


@dataclass(frozen=True)
class Rule:
    name: str
    source: str
    type_name: str
    wrong: Callable[[Values], bool]
    refused: Values


def container(task: Values) -> Values:
    (found,) = json.loads(task["container_definitions"])
    return found


def is_fargate(task: Values) -> bool:
    return "FARGATE" in task["requires_compatibilities"]


def is_rabbitmq(broker: Values) -> bool:
    return broker["engine_type"].lower() == "rabbitmq"


FARGATE_MEMORY = {
    256: [512, 1024, 2048],
    512: range(1024, 4097, 1024),
    1024: range(2048, 8193, 1024),
    2048: range(4096, 16385, 1024),
    4096: range(8192, 30721, 1024),
    8192: range(16384, 61441, 4096),
    16384: range(32768, 122881, 8192),
}
BROKER = {"engine_type": "RabbitMQ", "deployment_mode": "SINGLE_INSTANCE", "subnet_ids": ["subnet-1"]}
FARGATE = {"requires_compatibilities": ["FARGATE"], "cpu": "1024", "memory": "2048", "container_definitions": "[{}]"}

RULES = [
    Rule(
        "a RabbitMQ broker takes no encryption options",
        "https://github.com/hashicorp/terraform-provider-aws/issues/25998",
        "aws_mq_broker",
        lambda broker: is_rabbitmq(broker) and bool(broker.get("encryption_options")),
        {**BROKER, "encryption_options": [{"use_aws_owned_key": True}]},
    ),
    Rule(
        "a RabbitMQ broker writes no audit log",
        "https://github.com/hashicorp/terraform-provider-aws/issues/18350",
        "aws_mq_broker",
        lambda broker: is_rabbitmq(broker) and any(logs.get("audit") for logs in broker.get("logs") or []),
        {**BROKER, "logs": [{"audit": "true"}]},
    ),
    Rule(
        "a single instance is in one subnet, a cluster in several",
        f"{PROVIDER}/website/docs/r/mq_broker.html.markdown",
        "aws_mq_broker",
        lambda broker: (len(broker["subnet_ids"]) == 1) != (broker["deployment_mode"] == "SINGLE_INSTANCE"),
        {**BROKER, "subnet_ids": ["subnet-1", "subnet-2"]},
    ),
    Rule(
        "RabbitMQ 4 runs on mq.m7g alone",
        "https://docs.aws.amazon.com/amazon-mq/latest/developer-guide/rabbitmq-4.html",
        "aws_mq_broker",
        lambda broker: broker["engine_version"].startswith("4.") and "m7g" not in broker["host_instance_type"],
        {"engine_version": "4.2", "host_instance_type": "mq.m5.large"},
    ),
    Rule(
        "Fargate has certain sizes",
        f"{ECS}/task-cpu-memory-error.html",
        "aws_ecs_task_definition",
        lambda task: is_fargate(task) and int(task["memory"]) not in FARGATE_MEMORY[int(task["cpu"])],
        {**FARGATE, "memory": "16384"},
    ),
    Rule(
        "Fargate has neither GPUs nor a size of /dev/shm",
        f"{ECS}/task_definition_parameters.html#container_definition_linuxparameters",
        "aws_ecs_task_definition",
        lambda task: is_fargate(task) and bool(container(task).keys() & {"linuxParameters", "resourceRequirements"}),
        {**FARGATE, "container_definitions": '[{"linuxParameters": {"sharedMemorySize": 1024}}]'},
    ),
    Rule(
        "a changed strategy makes another service, unless a new deployment is forced",
        f"{PROVIDER}/internal/service/ecs/service.go (capacityProviderStrategyCustomizeDiff)",
        "aws_ecs_service",
        lambda service: not service["force_new_deployment"],
        {"force_new_deployment": False},
    ),
    Rule(
        "step scaling takes 20 steps",
        "https://docs.aws.amazon.com/autoscaling/application/userguide/application-auto-scaling-limits.html",
        "aws_appautoscaling_policy",
        lambda policy: len(policy["step_scaling_policy_configuration"][0]["step_adjustment"]) > 20,
        {"step_scaling_policy_configuration": [{"step_adjustment": [{}] * 21}]},
    ),
    Rule(
        "an alarm looks back a day",
        "https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutMetricAlarm.html",
        "aws_cloudwatch_metric_alarm",
        lambda alarm: any(period * alarm["evaluation_periods"] > 86_400 or period % 60 for period in periods(alarm)),
        {"evaluation_periods": 25, "period": 3600, "metric_query": []},
    ),
    Rule(
        "EventBridge writes to log groups below /aws/events/",
        "https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-event-log-tutorial.html",
        "aws_cloudwatch_event_target",
        lambda target: ":log-group:" in target["arn"] and ":log-group:/aws/events/" not in target["arn"],
        {"arn": "arn:aws:logs:eu-central-1:1:log-group:/gristmill/team"},
    ),
    Rule(
        "a role is called by 64 characters",
        "https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html",
        "aws_iam_role",
        lambda role: len(role["name"]) > 64,
        {"name": "x" * 65},
    ),
    Rule(
        "a policy has 6144 characters without spaces",
        "https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html",
        "aws_iam_policy",
        lambda policy: len(re.sub(r"\s", "", policy["policy"])) > 6144,
        {"policy": "x" * 6145},
    ),
    Rule(
        "an alarm takes ten metrics",
        "https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_limits.html",
        "aws_cloudwatch_metric_alarm",
        lambda alarm: len([query for query in alarm["metric_query"] or [] if query["metric"]]) > 10,
        {"metric_query": [{"metric": [{}]}] * 11},
    ),
    Rule(
        "no provider of capacity has the weight 0",
        "https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_CapacityProviderStrategyItem.html",
        "aws_ecs_service",
        lambda service: any(not part["weight"] for part in service["capacity_provider_strategy"]),
        {"capacity_provider_strategy": [{"weight": 0}]},
    ),
    Rule(
        "the policy of an endpoint has 20480 characters",
        "https://docs.aws.amazon.com/vpc/latest/privatelink/vpc-endpoints-access.html",
        "aws_vpc_endpoint",
        lambda endpoint: len(endpoint["policy"]) > 20480,
        {"policy": "x" * 20481},
    ),
    Rule(
        "the description of a rule has plain characters",
        "https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_SecurityGroupRuleRequest.html",
        "aws_vpc_security_group_ingress_rule",
        lambda rule: not re.fullmatch(r"[A-Za-z0-9. _\-:/()#,@\[\]+=&;{}!$*]{1,255}", rule["description"]),
        {"description": "clients, “all”"},
    ),
]


def periods(alarm: Values) -> Iterator[int]:
    yield from (query["metric"][0]["period"] for query in alarm["metric_query"] or [] if query["metric"])
    if alarm.get("period"):
        yield alarm["period"]


def broken(resources: Callable[[str], dict[str, Values]]) -> list[str]:
    """Yields every rule that a plan breaks, and the resource that breaks it."""
    return [
        f"{address}: {rule.name} ({rule.source})"
        for rule in RULES
        for address, values in resources(rule.type_name).items()
        if rule.wrong(values)
    ]


# Memory in MiB, processors and GPUs of instances: https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html
GPU_INSTANCES = {"g4dn.xlarge": (16384, 4, 1), "g5.xlarge": (16384, 4, 1), "g5.12xlarge": (196608, 48, 4)}
# ECS registers less than that, since kernel, agent and driver need some. The difference depends on the machine image
# and is undocumented; our margin is six percent.
# https://docs.aws.amazon.com/AmazonECS/latest/developerguide/memory-management.html
REGISTERED_SHARE = 0.94

# https://docs.aws.amazon.com/AmazonECS/latest/developerguide/vpc-endpoints.html,
# https://docs.aws.amazon.com/AmazonECR/latest/userguide/vpc-endpoints.html
ENDPOINTS = {
    "FARGATE": {"ecr.api", "ecr.dkr", "logs", "s3", "secretsmanager", "sqs"},
    "EC2": {"ecr.api", "ecr.dkr", "logs", "s3", "secretsmanager", "sqs", "ecs", "ecs-agent", "ecs-telemetry"},
}
