"""infra/modules: planned alarms with their runbooks, scaling by the backlog, events of ECS and the dashboard."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from terraform_files import INFRA
from terraform_plan import REGION, Plan

# One process makes the plans.
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("terraform")]


def alarms_of(plan: Plan, target: str) -> dict[str, dict[str, Any]]:
    alarms = plan.resources("aws_cloudwatch_metric_alarm", f"module.{target}.").values()
    return {found["alarm_name"].removeprefix(f"{target}-"): found for found in alarms}


@pytest.mark.parametrize(("target", "workers_max", "each"), [("sqs", 7, 10), ("large", 1000, 3), ("moved", 50, 100)])
def test_backlog_determines_the_number_of_workers(
    target: str, workers_max: int, each: int, made: Plan, changed: Plan
) -> None:
    """AWS uses the step whose interval contains the metric, including its lower bound."""
    policy = changed.resource(f'module.{target}.aws_appautoscaling_policy.workers["follow-backlog"]')
    assert policy["step_scaling_policy_configuration"][0]["adjustment_type"] == "ExactCapacity"
    steps = sorted(
        (
            float(step["metric_interval_lower_bound"]),
            float(step["metric_interval_upper_bound"] or math.inf),
            step["scaling_adjustment"],
        )
        for step in policy["step_scaling_policy_configuration"][0]["step_adjustment"]
    )
    assert steps[0][0] == 0 and steps[-1][1] == math.inf
    assert [end for _, end, _ in steps[:-1]] == [start for start, _, _ in steps[1:]], "a gap, or an overlap"
    levels = [level for *_, level in steps]
    assert levels[0] == 1 and levels[-1] == workers_max and levels == sorted(set(levels))
    edges = {
        int(bound) + by for start, end, _ in steps for bound in (start, end) if bound < math.inf for by in (-1, 0, 1)
    }
    for backlog in sorted({1, 10**6} | {edge for edge in edges if edge > 0}):
        (count,) = [level for start, end, level in steps if start <= backlog < end]
        wanted = min(workers_max, math.ceil(backlog / each))
        fewer = max([level for level in levels if level < count], default=0)
        assert fewer < wanted <= count, f"{backlog}: {count} workers, {wanted} wanted"


def test_scaling_follows_the_backlog_to_zero_and_back(made: Plan) -> None:
    target = made.resource("module.sqs.aws_appautoscaling_target.workers")
    assert (target["min_capacity"], target["max_capacity"]) == (0, 50)
    rest = made.resource('module.sqs.aws_appautoscaling_policy.workers["rest"]')
    (step,) = rest["step_scaling_policy_configuration"][0]["step_adjustment"]
    assert step["scaling_adjustment"] == 0
    up, down = (alarms_of(made, "sqs")[f"worker-{name}"] for name in ("follow-backlog", "rest"))
    assert (up["comparison_operator"], up["threshold"], up["evaluation_periods"]) == ("GreaterThanThreshold", 0, 1)
    assert (down["comparison_operator"], down["evaluation_periods"]) == ("LessThanOrEqualToThreshold", 10)
    for alarm in (up, down):
        counted = [query["metric"][0]["metric_name"] for query in alarm["metric_query"] if query["metric"]]
        counted = sorted(name.removeprefix("ApproximateNumberOfMessages") for name in counted)
        assert counted == ["Delayed", "NotVisible", "Visible"]


def test_scaling_and_alarms_add_up_the_lanes_of_a_rabbitmq_target(made: Plan) -> None:
    alarms = alarms_of(made, "rabbitmq")
    lanes = ["", *(f"-{number}" for number in range(2, 9))]
    for name in ("worker-follow-backlog", "worker-rest", "no-progress"):
        metrics = [query["metric"][0] for query in alarms[name]["metric_query"] if query["metric"]]
        assert len(metrics) <= 10, "an alarm of CloudWatch takes ten"
        counted = {
            metric["dimensions"]["Queue"]: metric["metric_name"]
            for metric in metrics
            if "Queue" in metric["dimensions"]
        }
        assert sorted(queue.partition("-tasks")[2] for queue in counted) == lanes, name
        assert set(counted.values()) == {"MessageCount"}, "ready and unacknowledged messages"


def test_alarms_have_runbooks_and_configurable_thresholds(made: Plan, changed: Plan) -> None:
    alarms = alarms_of(made, "sqs")
    scaling = {"worker-follow-backlog", "worker-rest"}
    ages = {"oldest-result", "oldest-task"}
    told = alarms.keys() - scaling
    assert ages | {"dead-letters", "no-progress", "reducer-down", "workers-missing"} <= told
    runbooks = (INFRA / "RUNBOOKS.md").read_text()
    for name in told:
        page, _, anchor = alarms[name]["alarm_description"].rpartition("Runbook: ")[2].partition("#")
        assert page == "infra/RUNBOOKS.md" and f"\n## {anchor}\n" in runbooks, name
        assert len(alarms[name]["alarm_actions"]) == len(alarms[name]["ok_actions"]) == 1
    assert alarms["reducer-down"]["treat_missing_data"] == "breaching", "a missing role reports nothing"
    assert alarms_of(made, "rabbitmq").keys() == scaling | told - ages, "RabbitMQ does not tell the age of a message"

    after = alarms_of(changed, "sqs")
    assert (after["oldest-result"]["threshold"], after["placement-failed"]["threshold"]) == (420, 9)
    assert (after["workers-missing"]["threshold"], after["no-progress"]["evaluation_periods"]) == (50, 12)


def test_events_of_ecs_are_those_of_the_services_and_raise_alarms(made: Plan) -> None:
    rules = {
        address.partition('"')[2].strip('"]'): json.loads(rule["event_pattern"])
        for address, rule in made.resources("aws_cloudwatch_event_rule", "module.gpus.").items()
    }
    names = ("gpus-reducer", "gpus-gpu-worker")
    service = f"arn:aws:ecs:{REGION}:123456789012:service/fleet/"
    assert rules["services"]["resources"] == [f"{service}{name}" for name in names]
    assert rules["tasks"]["detail"]["group"] == [f"service:{name}" for name in names]
    assert rules["instances"]["detail"] == {"AutoScalingGroupName": ["fleet-gpu"]}
    filters = made.resources("aws_cloudwatch_log_metric_filter", "module.gpus.").values()
    counted = {found["pattern"]: found["metric_transformation"][0] for found in filters}
    for event, name in (("SERVICE_TASK_PLACEMENT_FAILURE", "placement-failed"), ("SpotInterruption", "spot-reclaimed")):
        (metric,) = [metric for pattern, metric in counted.items() if event in pattern]
        (query,) = alarms_of(made, "gpus")[name]["metric_query"]
        counting = query["metric"][0]
        assert (counting["namespace"], counting["metric_name"]) == (metric["namespace"], metric["name"])
        assert query["return_data"] and counting["stat"] == "Sum"


def test_dashboard_has_valid_metrics(made: Plan) -> None:
    body = made.resource("module.sqs.module.observability.aws_cloudwatch_dashboard.target")["dashboard_body"]
    widgets = json.loads(body)["widgets"]
    for metric in (metric for widget in widgets for metric in widget["properties"].get("metrics", [])):
        *names, options = metric
        assert len(names) % 2 == 0 and all(isinstance(name, str) for name in names), metric
        assert options["stat"] in {"Average", "Maximum", "Minimum", "SampleCount", "Sum"}, metric
