"""infra/modules: planned alarms with their runbooks, scaling by need, events of ECS and the dashboard."""

from __future__ import annotations

import itertools
import json
import math
import re
import sqlite3
import time
from fnmatch import fnmatchcase
from typing import Any

import pytest

from alarms import rules
from harness import Workplace, wait_until
from targets import Target
from terraform_files import INFRA
from terraform_plan import REGION, Plan

# One process makes the plans.
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("terraform")]

SCALING = {"worker-cpu-follow-need", "worker-cpu-rest"}


def alarms_of(plan: Plan, target: str) -> dict[str, dict[str, Any]]:
    alarms = plan.resources("aws_cloudwatch_metric_alarm", f"module.{target}.").values()
    return {found["alarm_name"].removeprefix(f"{target}-"): found for found in alarms}


def metrics_of(alarm: dict[str, Any]) -> list[dict[str, Any]]:
    return [query["metric"][0] for query in alarm["metric_query"] if query["metric"]]


def expression_of(alarm: dict[str, Any]) -> str:
    (expression,) = [query["expression"] for query in alarm["metric_query"] if query["expression"]]
    return expression


@pytest.mark.parametrize(("target", "workers_max"), [("sqs", 7), ("large", 1000), ("moved", 50)])
def test_need_determines_the_number_of_workers(target: str, workers_max: int, made: Plan, changed: Plan) -> None:
    """AWS uses the step whose interval contains the metric, including its lower bound."""
    (policy,) = [
        found
        for address, found in changed.resources("aws_appautoscaling_policy", f"module.{target}.").items()
        if address.endswith('-follow-need"]')
    ]
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
    for need in [*range(1, workers_max + 2), 10**6]:
        (count,) = [level for start, end, level in steps if start <= need < end]
        wanted = min(workers_max, need)
        fewer = max([level for level in levels if level < count], default=0)
        assert fewer < wanted <= count, f"{need}: {count} workers, {wanted} wanted"


def wanted(plan: Plan, target: str, reports: dict[str, int]) -> dict[str, int | None]:
    """Returns how many workers the alarms of each pool compute from the reports of reducers, by service."""
    workers: dict[str, int | None] = {}
    for name, alarm in alarms_of(plan, target).items():
        service = name.removesuffix("-rest").removesuffix("-follow-need")
        if service == name:
            continue
        values = {
            query["id"]: reports.get(query["metric"][0]["dimensions"]["Requires"])
            for query in alarm["metric_query"]
            if query["metric"]
        }
        fill = {"FILL": lambda value, otherwise: otherwise if value is None else value, "CEIL": math.ceil}
        # CloudWatch has no value where a metric without FILL has none.
        count = None if values["any_node"] is None else eval(expression_of(alarm), fill, values)
        assert workers.setdefault(service, count) == count, "both alarms look at the same number"
    return workers


@pytest.mark.parametrize(
    ("target", "service", "before", "after"),
    [("sqs", "worker-cpu", 4, 10), ("large", "worker-cpu", 3, 3), ("gpus", "gpu-worker-gpu", 1, 2)],
)
def test_workers_have_room_for_the_processes(
    target: str, service: str, before: int, after: int, made: Plan, changed: Plan
) -> None:
    """By default a worker runs a process for each core, or for each GPU."""
    for plan, processes in ((made, before), (changed, after)):
        for need, count in ((0, 0), (1, 1), (5 * processes, 5), (5 * processes + 1, 6)):
            assert wanted(plan, target, {"any": need}) == {service: count}


def test_need_starts_workers_of_one_pool(made: Plan) -> None:
    """The pool that names it, else the plainest that meets it; a need that no pool meets starts nothing."""
    needs = made.output("pools")["resources"]["needs"]
    assert {pool: set(of_pool) for pool, of_pool in needs.items()} == {
        "small": {"any"},
        "large": {"label size=large", "label zone=a", "label size=large, label zone=a"},
        "gpu": {"1 GPU"},
        "gpus": {"2 GPUs", "1 GPU, label gpu_model=H200"},
        "arm": {"label arch=arm64"},
    }
    none = dict.fromkeys(("worker-small", "worker-large", "worker-arm", "gpu-worker-gpu", "gpu-worker-gpus"), 0)
    for report, started in {
        ("any", 9): {"worker-small": 5},
        ("1 GPU", 3): {"gpu-worker-gpu": 3},
        ("2 GPUs", 3): {"gpu-worker-gpus": 2},
        ("label size=large, label zone=a", 17): {"worker-large": 2},
        ("label arch=arm64", 1): {"worker-arm": 1},
        ("label zone=b", 1000): {},
        ("3 GPUs", 1000): {},
    }.items():
        assert wanted(made, "pools", {"any": 0, **dict([report])}) == none | started, report
    assert set(wanted(made, "pools", {"1 GPU": 3}).values()) == {None}, "without a reducer the numbers stay"


def test_labels_of_jobs_and_of_scaling_are_those_of_the_workers(made: Plan) -> None:
    def labels(task: str) -> str | None:
        variables = {entry["name"]: entry["value"] for entry in made.containers()[f"pools-{task}"]["environment"]}
        return variables.get("GRISTMILL_LABELS")

    tasks = ("worker-small", "worker-large", "gpu-worker-gpus", "reducer")
    assert [labels(task) for task in tasks] == [None, "size=large,zone=a", "gpu_model=H200", None]


@pytest.mark.parametrize(
    ("target", "before", "after"),
    [
        ("sqs", ["any"], ["any", "label zone=a"]),
        ("rabbitmq", ["any"], ["any"]),
        ("gpus", ["any", "1 GPU"], ["any", "1 GPU", "2 GPUs"]),
        ("moved", ["any"], ["any", "1 GPU"]),
    ],
)
def test_need_is_what_the_workers_of_the_target_meet(
    target: str, before: list[str], after: list[str], made: Plan, changed: Plan
) -> None:
    for plan, kinds in ((made, before), (changed, after)):
        alarms = alarms_of(plan, target)
        for part in ("-follow-need", "-rest", "no-worker-"):
            (alarm,) = [found for name, found in alarms.items() if part in name]
            metrics = metrics_of(alarm)
            assert len(metrics) <= 10, "an alarm of CloudWatch takes ten"
            need = [metric for metric in metrics if metric["metric_name"] == "ProcessesWanted"]
            dimensions = [sorted(metric["dimensions"].items()) for metric in need]
            assert sorted(dimensions) == [[("Requires", kind), ("Target", target)] for kind in sorted(kinds)]
            assert {metric["stat"] for metric in need} == {"Maximum"}, "every reducer reports all of it"
            assert {metric["namespace"] for metric in need} == {f"Gristmill/{target}"}


def test_reducers_report_the_need_in_the_form_that_scaling_reads(made: Plan, workplace: Workplace) -> None:
    for name, container in made.containers().items():
        variables = {entry["name"]: entry["value"] for entry in container["environment"]}
        target, _, role = name.partition("-")
        expected = f"Gristmill/{target}" if role == "reducer" else None
        assert variables.get("GRISTMILL_CLOUDWATCH_NAMESPACE") == expected, name
    addresses = {"GRISTMILL_QUEUE": "sqlite:queues", "GRISTMILL_STORE": f"file://{workplace.folder}/store"}
    # With the log of the tasks, too.
    settings = {"GRISTMILL_CLOUDWATCH_NAMESPACE": "Gristmill/sqs", "GRISTMILL_LOG_FORMAT": "json"}
    reducer = workplace.start("reducer", **addresses, **settings)
    printed = (json.loads(line) for line in iter(reducer.process.stdout.readline, b""))
    *lines, totals = itertools.islice((line for line in printed if "_aws" in line), 3)
    for alarm in ("jobs-blocked", "no-progress"):
        for metric in metrics_of(alarms_of(made, "sqs")[alarm]):
            assert totals[metric["metric_name"]] == 0 and list(metric["dimensions"]) == ["Target"], totals
    line = {line["Requires"]: line for line in lines}["any"]
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    (need,) = metrics_of(alarms_of(made, "sqs")["worker-cpu-rest"])
    assert (directive["Namespace"], directive["Metrics"][0]["Name"]) == (need["namespace"], need["metric_name"])
    assert [sorted(names) for names in directive["Dimensions"]] == [sorted(need["dimensions"])]
    assert (line["Requires"], line["ProcessesWanted"]) == (need["dimensions"]["Requires"], 0), "no job wants a process"


def test_workers_start_at_once_and_stop_late(made: Plan) -> None:
    """An alarm looks every minute at the last ten, and follows their maximum."""
    target = made.resource('module.sqs.aws_appautoscaling_target.workers["worker-cpu"]')
    assert (target["min_capacity"], target["max_capacity"]) == (0, 50)
    rest = made.resource('module.sqs.aws_appautoscaling_policy.workers["worker-cpu-rest"]')
    (step,) = rest["step_scaling_policy_configuration"][0]["step_adjustment"]
    assert step["scaling_adjustment"] == 0
    up, down = (alarms_of(made, "sqs")[name] for name in sorted(SCALING))
    assert (up["comparison_operator"], up["threshold"]) == ("GreaterThanThreshold", 0)
    assert (down["comparison_operator"], down["threshold"]) == ("LessThanOrEqualToThreshold", 0)
    for alarm in (up, down):
        assert alarm["evaluation_periods"] == 1 and {metric["period"] for metric in metrics_of(alarm)} == {600}
    # Without a reducer there is no data.
    assert (up["treat_missing_data"], down["treat_missing_data"]) == ("notBreaching", "ignore")


def test_alarms_have_runbooks_and_configurable_thresholds(made: Plan, changed: Plan) -> None:
    alarms = alarms_of(made, "sqs")
    told = alarms.keys() - SCALING
    assert told == {
        "dead-letters",
        "jobs-blocked",
        "no-progress",
        "no-worker-cpu",
        "placement-failed",
        "queue-errors",
        "reducer-down",
        "results-not-committed",
        "spot-reclaimed",
        "worker-fails",
        "workers-missing-cpu",
    }
    anchors = set()
    runbooks = (INFRA / "RUNBOOKS.md").read_text()
    for name in told:
        page, _, anchor = alarms[name]["alarm_description"].rpartition("Runbook: ")[2].partition("#")
        assert page == "infra/RUNBOOKS.md" and anchor == name.removesuffix("-cpu") and f"\n## {anchor}\n" in runbooks, (
            name
        )
        anchors.add(anchor)
        assert len(alarms[name]["alarm_actions"]) == len(alarms[name]["ok_actions"]) == 1
    of_prometheus = {rule["annotations"]["runbook"].rpartition("#")[2]: rule["alert"] for rule in rules()}
    # What has the same name is the same fault.
    assert set(re.findall(r"^## ([a-z-]+)$", runbooks, re.MULTILINE)) == anchors | of_prometheus.keys(), "and no others"
    for anchor, alert in of_prometheus.items():
        assert alert == "Gristmill" + anchor.title().replace("-", ""), anchor
    assert alarms_of(made, "rabbitmq").keys() == SCALING | told
    after = alarms_of(changed, "sqs")
    assert (after["workers-missing-cpu"]["threshold"], after["placement-failed"]["threshold"]) == (50, 9)
    for found, minutes in ((alarms, 30), (after, 90)):
        alarm = found["no-progress"]
        assert {alarm["evaluation_periods"] * metric["period"] for metric in metrics_of(alarm)} == {minutes * 60}
        assert f"for {minutes} minutes" in alarm["alarm_description"]


def test_alarm_about_missing_workers_needs_a_need_and_no_worker(made: Plan, changed: Plan) -> None:
    for plan, minutes, need in ((made, 15, "FILL(n0, 0)"), (changed, 60, "FILL(n0, 0) + FILL(n1, 0)")):
        alarm = alarms_of(plan, "sqs")["no-worker-cpu"]
        assert expression_of(alarm) == f"IF(({need} > 0) AND (FILL(workers, 0) == 0), 1, 0)"
        assert (alarm["comparison_operator"], alarm["threshold"]) == ("GreaterThanThreshold", 0)
        (workers,) = [metric for metric in metrics_of(alarm) if metric["metric_name"] == "CPUUtilization"]
        assert workers["dimensions"] == {"ClusterName": "fleet", "ServiceName": "sqs-worker-cpu"}
        assert (workers["stat"], alarm["evaluation_periods"] * workers["period"]) == ("SampleCount", minutes * 60)


def test_absent_reducer_raises_an_alarm(made: Plan) -> None:
    alarm = alarms_of(made, "sqs")["reducer-down"]
    (reports,) = metrics_of(alarm)
    assert reports["dimensions"] == {"ClusterName": "fleet", "ServiceName": "sqs-reducer"}
    assert (reports["metric_name"], reports["stat"]) == ("CPUUtilization", "SampleCount")
    assert (alarm["comparison_operator"], alarm["threshold"]) == ("LessThanThreshold", 1)
    assert alarm["treat_missing_data"] == "breaching", "a missing role reports nothing"


@pytest.mark.parametrize("target", ["sqs", "rabbitmq"])
def test_dead_letters_raise_an_alarm(target: str, made: Plan) -> None:
    alarm = alarms_of(made, target)["dead-letters"]
    (metric,) = metrics_of(alarm)
    assert (metric["metric_name"], metric["dimensions"]) == ("DeadLetters", {"Target": target})
    assert (alarm["comparison_operator"], alarm["threshold"]) == ("GreaterThanThreshold", 0)


def test_events_of_ecs_are_those_of_the_services_and_raise_alarms(made: Plan) -> None:
    rules = {
        address.partition('"')[2].strip('"]'): json.loads(rule["event_pattern"])
        for address, rule in made.resources("aws_cloudwatch_event_rule", "module.gpus.").items()
    }
    names = ("gpus-gpu-worker-gpu", "gpus-reducer")
    service = f"arn:aws:ecs:{REGION}:123456789012:service/fleet/"
    assert rules["services"]["resources"] == [f"{service}{name}" for name in names]
    assert rules["tasks"]["detail"]["group"] == [f"service:{name}" for name in names]
    assert rules["instances"]["detail"] == {"AutoScalingGroupName": ["fleet-gpu-a10"]}
    filters = made.resources("aws_cloudwatch_log_metric_filter", "module.gpus.").values()
    counted = {found["pattern"]: found["metric_transformation"][0] for found in filters}
    for event, name in (("SERVICE_TASK_PLACEMENT_FAILURE", "placement-failed"), ("SpotInterruption", "spot-reclaimed")):
        (metric,) = [metric for pattern, metric in counted.items() if event in pattern]
        (query,) = alarms_of(made, "gpus")[name]["metric_query"]
        counting = query["metric"][0]
        assert (counting["namespace"], counting["metric_name"]) == (metric["namespace"], metric["name"])
        assert query["return_data"] and counting["stat"] == "Sum"


STEADY = """
    import os, time
    def run(files):
        if os.environ["MOUNT"] == "missing":
            raise FileNotFoundError("/mnt/shared is not mounted")
        time.sleep(0.1)
        return files
"""


def test_alarms_count_what_roles_log_of_a_fault(made: Plan, workplace: Workplace, sqlite: Target) -> None:
    """One worker fails everything, then the ledger cannot be written, then the queues are held by another process."""
    json_log = {"GRISTMILL_LOG_FORMAT": "json"}
    roles = [sqlite.start("reducer", **json_log)]
    roles += [sqlite.start("worker", "--process-count", 1, MOUNT=mount, **json_log) for mount in ("there", "missing")]
    job_id = sqlite.enqueue(workplace.job_of_its_own("steady", 500, STEADY))
    wait_until(lambda: "is excluded" in sqlite.command("status", job_id).stdout, "a worker that the job excludes")
    ledger = sqlite.folder / "store/jobs" / job_id / "ledger"
    ledger.rename(ledger.with_name("away"))
    ledger.write_text("a file in its place")
    held = [sqlite3.connect(file, isolation_level=None) for file in (sqlite.folder / "queues").glob("steady*.db")]
    assert len(held) == 2
    time.sleep(1)
    for queue in held:
        queue.execute("begin exclusive")
    # A call fails after ten seconds.
    time.sleep(15)
    for role in roles:
        role.kill()
    lines = [json.loads(line) for role in roles for line in role.wait().stderr.splitlines() if line.startswith("{")]
    filters = made.resources("aws_cloudwatch_log_metric_filter", "module.sqs.module.observability.").values()
    counting = {found["metric_transformation"][0]["name"]: found for found in filters}
    for name in ("worker-fails", "results-not-committed", "queue-errors"):
        (metric,) = metrics_of(alarms_of(made, "sqs")[name])
        found = counting[metric["metric_name"]]
        assert found["metric_transformation"][0]["namespace"] == metric["namespace"]
        assert metric["stat"] == "Sum" and found["log_group_name"] == "/gristmill/sqs"
        matching = [line for line in lines if any(fnmatchcase(line["message"], words) for words in words_of(found))]
        assert matching, f"{name}: nothing in {lines}"
        assert {line["level"] for line in matching} <= {"WARN", "ERROR"}, "without GRISTMILL_LOG nothing else is logged"


def words_of(counting: dict[str, Any]) -> list[str]:
    """Returns the alternatives of the pattern of a filter, which compare the message with words and `*`."""
    alternative = r"\(\$\.message = \"([^\"]+)\"\)"
    assert re.fullmatch(rf"{{ {alternative}( \|\| {alternative})* }}", counting["pattern"]), counting["pattern"]
    return re.findall(alternative, counting["pattern"])


def test_dashboard_has_valid_metrics(made: Plan) -> None:
    body = made.resource("module.sqs.module.observability.aws_cloudwatch_dashboard.target")["dashboard_body"]
    widgets = json.loads(body)["widgets"]
    searches = []
    for metric in (metric for widget in widgets for metric in widget["properties"].get("metrics", [])):
        *names, options = metric
        if "expression" in options:
            searches.append(options["expression"])
            continue
        assert len(names) % 2 == 0 and all(isinstance(name, str) for name in names), metric
        assert options["stat"] in {"Average", "Maximum", "Minimum", "SampleCount", "Sum"}, metric
    # All kinds of nodes, also those that no worker of the target is.
    place = '{"Gristmill/sqs",Requires,Target} MetricName="ProcessesWanted"'
    assert searches == [f"SEARCH('{place}', 'Maximum', 60)"]
