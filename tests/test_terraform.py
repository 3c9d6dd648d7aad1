"""infra/: Terraform that can be applied, held against the provider's schema, the sources, and itself.

Most of it needs no Terraform. Where Terraform and the plugin of the provider are at hand, `terraform validate` and
`terraform test` run too; the names of the tests that were skipped say what did not.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import uuid
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import terraform_files
import terraform_schema
from components import Components
from harness import Workplace
from terraform_files import INFRA, MODULES, ROOTS, Folder, call, evaluate, found, problems, read

# Terraform waits for what it has made, and machines of tests are busy.
pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = MODULES + ROOTS
SCHEMA = json.loads(terraform_schema.FILE.read_text())


@cache
def folder(path: Path) -> Folder:
    return read(path)


def every_folder(test: Any) -> Any:
    return pytest.mark.parametrize("path", FOLDERS, ids=lambda path: str(path.relative_to(INFRA)))(test)


def test_all_parts_are_there() -> None:
    modules = {"access", "cluster", "observability", "queue", "rabbitmq", "reducer", "store", "task", "workers"}
    assert {path.name for path in MODULES} == modules
    assert {str(path.relative_to(INFRA)) for path in ROOTS} == {
        "environments/dev",
        "environments/prod",
        "examples/localstack",
    }


@every_folder
def test_types_arguments_and_blocks_are_those_of_the_provider(path: Path) -> None:
    for (kind, type_name, name), body in folder(path).resources.items():
        assert type_name in SCHEMA[kind], f"{type_name}: run tests/terraform_schema.py"
        assert list(problems(body, SCHEMA[kind][type_name], f"{type_name}.{name}")) == []


def test_the_schema_holds_what_is_used_in_the_version_that_is_pinned() -> None:
    used = set(terraform_schema.used_types())
    assert used == {(kind, name) for kind in ("resource", "data") for name in SCHEMA[kind]}
    provider, _, version = SCHEMA["provider"].partition(" ")
    for path in ROOTS:
        text = folder(path).text
        assert f'"{provider}"' in text and f'version = "{version}"' in text, path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("name", "nam"), "there is no nam"),
        (("cluster", None), None),
        (("task_definition", "task"), "there is no task"),
    ],
)
def test_a_slip_is_found(change: tuple[str, str | None], said: str | None) -> None:
    body = dict(folder(INFRA / "modules/workers").resources["resource", "aws_ecs_service", "workers"])
    name, instead = change
    value = body.pop(name)
    if instead:
        body[instead] = value
    told = list(problems(body, SCHEMA["resource"]["aws_ecs_service"], "service"))
    assert told == [] if said is None else any(said in line for line in told), told


def test_a_slip_in_a_block_is_found() -> None:
    body = {"network_configuration": [{"subnets": [], "security_group": []}], "network_config": [{}], "name": "x"}
    told = list(problems(body, SCHEMA["resource"]["aws_ecs_service"], "service"))
    assert told == [
        "service: there is no network_config",
        "service.network_configuration: there is no security_group",
        "service: there is no block network_config",
    ]
    nameless = dict(folder(INFRA / "modules/workers").resources["resource", "aws_ecs_service", "workers"])
    del nameless["name"]
    assert list(problems(nameless, SCHEMA["resource"]["aws_ecs_service"], "service")) == ["service: name is missing"]


@every_folder
def test_what_is_named_exists_and_what_exists_is_used(path: Path) -> None:
    here = folder(path)
    named = here.references()
    for first, second, *rest in named:
        if first == "var":
            assert second in here.variables, second
        elif first == "local":
            assert second in here.local_values, second
        elif first == "module":
            called = read_called(here, second)
            assert not rest or rest[0] in called.outputs, f"module.{second}.{rest[0]}"
        elif first == "data":
            check_attribute("data", second, rest[0], rest[1:], here)
        elif first.startswith("aws_"):
            check_attribute("resource", first, second, rest, here)
    used_variables = {second for first, second, *_ in named if first == "var"}
    assert here.variables.keys() == used_variables
    assert here.local_values == {second for first, second, *_ in named if first == "local"}


def check_attribute(kind: str, type_name: str, name: str, rest: list[str], here: Folder) -> None:
    assert (kind, type_name, name) in here.resources, f"{type_name}.{name}"
    schema = SCHEMA[kind][type_name]
    known = {*schema["attributes"], *schema["arguments"], *schema["blocks"]}
    assert not rest or rest[0] in known, f"{type_name}.{name}.{rest[0]}"


def read_called(here: Folder, name: str) -> Folder:
    return folder((here.path / here.modules[name]["source"]).resolve())


@every_folder
def test_modules_are_given_what_they_declare(path: Path) -> None:
    here = folder(path)
    for name, arguments in here.modules.items():
        declared = read_called(here, name).variables
        given = arguments.keys() - {"source", "count", "for_each", "providers", "depends_on"}
        assert given <= declared.keys(), f"{name}: {given - declared.keys()}"
        needed = {variable for variable, body in declared.items() if "default" not in body}
        assert needed <= given, f"{name}: {needed - given}"


@every_folder
def test_variables_and_outputs_say_what_they_are(path: Path) -> None:
    here = folder(path)
    for name, body in here.variables.items():
        assert body.get("type") and len(body.get("description", "")) > 8, name
        for validation in body.get("validation", []):
            assert f"var.{name}" in validation["condition"] and validation["error_message"], name
    for name, body in here.outputs.items():
        assert len(body.get("description", "")) > 8, name


@every_folder
def test_versions_are_pinned(path: Path) -> None:
    text = folder(path).text
    assert re.search(r'required_version = ">= 1\.\d+\.0, < 2\.0\.0"', text)
    exact = r'version = "\d+\.\d+\.\d+"' if path in ROOTS else r'version = ">= \d+\.\d+\.\d+, < \d+\.0\.0"'
    assert re.search(r'source  = "hashicorp/aws"\n\s+' + exact, text)


def test_a_target_can_be_imported_and_holds_no_secret() -> None:
    for path in ROOTS:
        value = folder(path).outputs["target"]["value"]
        assert value.keys() == {"name", "queue", "store", "region", "endpoint"}, path
    address = folder(INFRA / "modules/rabbitmq").outputs["address"]["value"]
    assert "$${BROKER_PASSWORD}" in address and "var.password" not in address
    for path in FOLDERS:
        for name, body in folder(path).outputs.items():
            assert "password" not in str(body["value"]).replace("BROKER_PASSWORD", ""), f"{path}: {name}"


def number(text: str, name: str) -> int:
    """A constant of the sources."""
    expression = re.search(rf"const {name}: \w+ = (?:Duration::from_secs\()?([\d* ]+)", text)[1]
    return math.prod(int(factor) for factor in expression.split("*"))


def test_queues_are_as_doctor_would_make_them(tmp_path: Path) -> None:
    source = (ROOT / "services/queue/src/sqs/attributes.rs").read_text()
    made = evaluate(tmp_path, call("queue", prefix="team"))
    names = {}
    for queue in made["aws_sqs_queue"]:
        names[queue["name"]] = queue
        assert queue["message_retention_seconds"] == number(source, "RETENTION")
        assert queue["visibility_timeout_seconds"] == number(source, "VISIBILITY")
        assert queue["receive_wait_time_seconds"] == number(source, "WAIT")
        assert queue["sqs_managed_sse_enabled"] is True
    assert names.keys() == {"team-tasks", "team-results", "team-dead-letters"}
    for name in ("team-tasks", "team-results"):
        assert names[name]["redrive_policy"]
    module = folder(INFRA / "modules/queue")
    assert re.search(r"maxReceiveCount\s+= var.receives_max", module.text)
    assert module.variables["receives_max"]["default"] == number(source, "RECEIVES_MAX")
    assert not names["team-dead-letters"].get("redrive_policy")
    refusal = module.resources["data", "aws_iam_policy_document", "tls_only"]
    policies = module.resources["resource", "aws_sqs_queue_policy", "tls_only"]
    assert "local.queues" in refusal["for_each"] and policies["for_each"].endswith(": local.queues}"), "for each queue"
    (statement,) = refusal["statement"]
    assert (statement["effect"], statement["actions"]) == ("Deny", ["sqs:*"])
    (condition,) = statement["condition"]
    assert (condition["variable"], condition["values"]) == ("aws:SecureTransport", ["false"])


def test_the_store_keeps_what_jobs_need_and_nothing_for_ever(tmp_path: Path) -> None:
    made = evaluate(tmp_path, call("store", bucket="bucket", prefix="team"))
    rules = {rule["id"]: rule for rule in made["aws_s3_bucket_lifecycle_configuration"][0]["rule"]}
    assert all(rule["status"] == "Enabled" for rule in made["aws_s3_bucket_lifecycle_configuration"][0]["rule"])
    by_prefix = {(rule.get("filter") or {}).get("prefix"): rule for rule in rules.values()}
    assert by_prefix[None]["abort_incomplete_multipart_upload"]["days_after_initiation"] == 3
    assert by_prefix["team/jobs/"]["expiration"]["days"] == 90
    assert "expiration" not in by_prefix["team/snapshots/"], "one that is used again is not written again"
    assert "team/open/" not in by_prefix, "a marker is removed by who ends the job"
    access_block = made["aws_s3_bucket_public_access_block"][0]
    assert all(
        access_block[name] is True for name in access_block if name.startswith(("block_", "ignore_", "restrict_"))
    )
    assert made["aws_s3_bucket_versioning"][0]["versioning_configuration"]["status"] == "Disabled"
    variables = {statement["condition"]["variable"] for statement in made["aws_iam_policy_document"][0]["statement"]}
    assert variables == {"aws:SecureTransport", "s3:TlsVersion"}


SERVICE = {
    "name": "team",
    "cluster": {"arn": "arn:aws:ecs:eu-central-1:1:cluster/fleet", "name": "fleet"},
    "capacity": [{"provider": "FARGATE", "base": 1, "weight": 1}],
    "image": "images/gristmill:1",
    "queue": "sqs://team",
    "store": "s3://bucket/team",
    "policy_arn": "arn:aws:iam::1:policy/role",
    "log_group": "/gristmill/team",
    "subnet_ids": ["subnet-1"],
    "security_group_ids": ["sg-1"],
}
BACKLOG = [
    {"namespace": "AWS/SQS", "name": name, "statistic": "Maximum", "dimensions": {"QueueName": "team-tasks"}}
    for name in ("Visible", "NotVisible", "Delayed")
]


def workers(tmp_path: Path, **arguments: Any) -> dict[str, list[dict[str, Any]]]:
    return evaluate(tmp_path, call("workers", **SERVICE, backlog_metrics=BACKLOG, **arguments))


@pytest.mark.parametrize(("workers_max", "each"), [(1, 100), (2, 1), (7, 10), (20, 100), (50, 100), (1000, 3)])
def test_the_backlog_says_how_many_workers_there_are(workers_max: int, each: int, tmp_path: Path) -> None:
    """As AWS reads the steps: the one whose interval holds the metric, its lower bound included."""
    made = workers(tmp_path, workers_max=workers_max, backlog_per_worker=each)
    steps = found(made, "output", ".workers.output.steps")["value"]
    assert len(steps) <= 20, "more than AWS takes"
    assert steps[0]["from"] == 0 and steps[-1]["to"] is None
    assert [step["to"] for step in steps[:-1]] == [step["from"] for step in steps[1:]], "a gap, or an overlap"
    levels = [step["workers"] for step in steps]
    assert levels[0] == 1 and levels[-1] == workers_max and levels == sorted(set(levels))

    def count(backlog: int) -> int:
        (step,) = [s for s in steps if s["from"] <= backlog and (s["to"] is None or backlog < s["to"])]
        return step["workers"]

    edges = {
        edge
        for step in steps
        for bound in ("from", "to")
        if step[bound]
        for edge in range(step[bound] - 2, step[bound] + 3)
    }
    for backlog in sorted({1, 10**6} | {edge for edge in edges if edge > 0}):
        wanted = min(workers_max, math.ceil(backlog / each))
        fewer = max([level for level in levels if level < count(backlog)], default=0)
        assert fewer < wanted <= count(backlog), f"{backlog}: {count(backlog)} workers, {wanted} wanted"


def test_scaling_follows_the_backlog_in_flight_included_to_zero_and_back(tmp_path: Path) -> None:
    made = workers(tmp_path)
    target = made["aws_appautoscaling_target"][0]
    assert (target["min_capacity"], target["scalable_dimension"]) == (0, "ecs:service:DesiredCount")
    for policy in made["aws_appautoscaling_policy"]:
        assert policy["step_scaling_policy_configuration"]["adjustment_type"] == "ExactCapacity"
    rest = found(made, "aws_appautoscaling_policy", ".rest")["step_scaling_policy_configuration"]["step_adjustment"]
    assert rest["scaling_adjustment"] == 0
    up, down = (
        found(made, "aws_cloudwatch_metric_alarm", ".backlog"),
        found(made, "aws_cloudwatch_metric_alarm", ".idle"),
    )
    assert (up["comparison_operator"], up["threshold"]) == ("GreaterThanThreshold", 0)
    assert (down["comparison_operator"], down["threshold"]) == ("LessThanOrEqualToThreshold", 0)
    queue = evaluate(tmp_path / "queue", call("queue", prefix="team")) if (tmp_path / "queue").mkdir() is None else {}
    backlog = found(queue, "output", ".queue.output.metrics")["value"]["backlog"]
    assert [metric["name"].removeprefix("ApproximateNumberOfMessages") for metric in backlog] == [
        "Visible",
        "NotVisible",
        "Delayed",
    ]


@pytest.mark.parametrize("role", ["workers", "reducer"])
def test_a_container_is_configured_by_its_environment_and_can_write_where_it_must(role: str, tmp_path: Path) -> None:
    made = workers(tmp_path) if role == "workers" else evaluate(tmp_path, call("reducer", **SERVICE))
    (container,) = json.loads(made["aws_ecs_task_definition"][0]["container_definitions"])
    variables = {variable["name"]: variable["value"] for variable in container["environment"]}
    assert variables.pop("AWS_REGION")
    if role == "workers":
        assert variables.pop("GRISTMILL_LEASE_SECONDS") == "30"
    assert variables == {
        "GRISTMILL_QUEUE": "sqs://team",
        "GRISTMILL_STORE": "s3://bucket/team",
        "GRISTMILL_LISTEN": "0.0.0.0:9464",
        "GRISTMILL_LOG_FORMAT": "json",
    }
    settings = (ROOT / "services/cli/src/settings.rs").read_text()
    assert all(name in settings for name in variables if name.startswith("GRISTMILL"))
    assert container["readonlyRootFilesystem"] is True and container["user"] == "10001"
    assert {mount["containerPath"] for mount in container["mountPoints"]} == {"/var/cache/gristmill", "/tmp"}
    assert container["healthCheck"]["command"] == ["CMD", "gristmill", "health"]
    assert container["stopTimeout"] == 120
    assert container["command"] == (["worker", "--grace", "100"] if role == "workers" else ["reducer"])


def test_the_address_of_a_broker_comes_as_a_secret(tmp_path: Path) -> None:
    secret = {
        "queue": None,
        "queue_secret_arn": "arn:aws:secretsmanager:eu-central-1:1:secret:q",
        "has_queue_secret": True,
    }
    made = evaluate(tmp_path, call("reducer", **{**SERVICE, **secret}))
    (container,) = json.loads(made["aws_ecs_task_definition"][0]["container_definitions"])
    assert container["secrets"] == [{"name": "GRISTMILL_QUEUE", "valueFrom": secret["queue_secret_arn"]}]
    assert "GRISTMILL_QUEUE" not in {variable["name"] for variable in container["environment"]}
    read_it = found(made, "aws_iam_policy_document", "read_secret[0]")
    assert terraform_files.statements(read_it)[0]["resources"] == [secret["queue_secret_arn"]]


def test_workers_are_spot_with_a_floor_on_demand(tmp_path: Path) -> None:
    made = evaluate(tmp_path, call("cluster", name="team", vpc_id="vpc-1", on_demand_floor=2))
    capacity = found(made, "output", ".cluster.output.worker_capacity")["value"]
    assert capacity == [
        {"provider": "FARGATE", "base": 2, "weight": 1},
        {"provider": "FARGATE_SPOT", "base": 0, "weight": 99},
    ]
    assert "aws_autoscaling_group" not in made
    for repository in made["aws_ecr_repository"]:
        assert repository["image_tag_mutability"] == "IMMUTABLE"


def test_instances_with_gpus_come_with_work_and_are_drained(tmp_path: Path) -> None:
    gpu = {"instance_types": ["g5.xlarge", "g6.xlarge"]}
    made = evaluate(tmp_path, call("cluster", name="team", vpc_id="vpc-1", gpu=gpu, gpu_subnet_ids=["subnet-1"]))
    group = made["aws_autoscaling_group"][0]
    assert (group["min_size"], group["protect_from_scale_in"]) == (0, True)
    shares = group["mixed_instances_policy"]["instances_distribution"]
    assert (shares["on_demand_base_capacity"], shares["on_demand_percentage_above_base_capacity"]) == (1, 1)
    provider = made["aws_ecs_capacity_provider"][0]["auto_scaling_group_provider"]
    assert (provider["managed_draining"], provider["managed_termination_protection"]) == ("ENABLED", "ENABLED")
    text = folder(INFRA / "modules/cluster").text
    for setting in ("ECS_ENABLE_SPOT_INSTANCE_DRAINING=true", "ECS_CONTAINER_STOP_TIMEOUT=120s"):
        assert setting in text


def test_people_are_told_and_the_dashboard_can_be_read(tmp_path: Path) -> None:
    metric = BACKLOG[0]
    metrics = {"backlog": BACKLOG, "committed": metric, "dead_letters": metric, "oldest_age": metric}
    made = evaluate(
        tmp_path,
        call(
            "observability",
            name="team",
            metrics=metrics,
            cluster_name="fleet",
            worker_service_name="worker",
            reducer_service_name="reducer",
            log_group="/gristmill/team",
        ),
    )
    alarms = {alarm["__tfmeta"]["path"].rpartition(".")[2]: alarm for alarm in made["aws_cloudwatch_metric_alarm"]}
    assert alarms.keys() == {"oldest_task[0]", "dead_letters", "no_progress", "reducer_down"}
    assert alarms["reducer_down"]["treat_missing_data"] == "breaching", "who is gone reports nothing"
    for name, alarm in alarms.items():
        assert len(alarm["alarm_description"]) > 50 and alarm["alarm_actions"], name

    widgets = json.loads(made["aws_cloudwatch_dashboard"][0]["dashboard_body"])["widgets"]
    for widget in widgets:
        for metric in widget["properties"].get("metrics", []):
            *names, options = metric
            assert len(names) % 2 == 0 and all(isinstance(name, str) for name in names), metric
            assert options["stat"] in {"Average", "Maximum", "Minimum", "SampleCount", "Sum"}, metric
    taken = [
        (x, y)
        for widget in widgets
        for x in range(widget["x"], widget["x"] + widget["width"])
        for y in range(widget["y"], widget["y"] + widget["height"])
    ]
    assert len(taken) == len(set(taken)) and max(x for x, _ in taken) == 23, "widgets lie side by side"
    (shown,) = [widget for widget in widgets if widget["type"] == "alarm"]
    assert len(shown["properties"]["alarms"]) == len(alarms)


def test_every_exception_from_a_check_has_its_reason() -> None:
    for path in FOLDERS:
        for file in path.glob("*.tf"):
            for check, reason in re.findall(r"checkov:skip=(\w+)(.*)", file.read_text()):
                assert re.match(r": \w.{30,}\.$", reason), f"{file}: {check}{reason}"


def test_everything_is_formatted(tmp_path: Path) -> None:
    """By Terraform, or by the same formatter as npm has it."""
    files = [file for file in INFRA.rglob("*.hcl") if ".terraform" not in file.name] + list(INFRA.rglob("*.tf"))
    files = [file for file in files if ".terraform" not in file.parts]
    if program := shutil.which("terraform") or shutil.which("tofu"):
        arguments = [program, "fmt", "-check", "-diff", "-recursive", INFRA]
        checked = subprocess.run(arguments, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout
    elif shutil.which("npm"):
        for file, text in formatted_by_npm(files, tmp_path).items():
            assert text == file.read_text(), f"{file} is not formatted"
    else:
        pytest.skip("neither terraform nor npm is installed")


def formatted_by_npm(files: list[Path], folder: Path) -> dict[Path, str]:
    """What the formatter of Terraform makes of these files."""
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "@cdktf/hcl-tools@0.21.0"]
    subprocess.run(install, cwd=folder, check=True, capture_output=True)
    script = """
        const { format } = require("@cdktf/hcl-tools");
        const { readFileSync } = require("fs");
        const texts = process.argv.slice(1).map((file) => format(readFileSync(file, "utf8")));
        Promise.all(texts).then((all) => { console.log(JSON.stringify(all)); process.exit(0); });
    """
    command = ["node", "-e", script, *map(str, files)]
    said = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=60).stdout
    return dict(zip(files, json.loads(said), strict=True))


def test_both_formatters_agree(tmp_path: Path) -> None:
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    file = tmp_path / "one.tf"
    file.write_text('variable   "a" {\ntype=string\n  default   = 1\n}\n')
    formatted = formatted_by_npm([file, INFRA / "modules/workers/main.tf"], tmp_path)
    assert formatted[file] == 'variable "a" {\n  type    = string\n  default = 1\n}\n'
    assert formatted[INFRA / "modules/workers/main.tf"] == (INFRA / "modules/workers/main.tf").read_text()


def terraform() -> str:
    program = shutil.which("terraform") or shutil.which("tofu")
    if not program:
        pytest.skip("neither terraform nor tofu is installed")
    return program


@pytest.fixture(scope="module")
def initialized(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, dict[str, str]]:
    """A copy of infra/ whose roots have the provider's plugin: from a mirror on this machine, or from the registry."""
    program = terraform()
    copy = tmp_path_factory.mktemp("terraform") / "infra"
    shutil.copytree(INFRA, copy, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*", "*.tfvars"))
    environment = {**os.environ, "TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"}
    environment.pop("TF_CLI_CONFIG_FILE", None)
    mirrors = [path.parent for path in Path("/opt").glob("*/registry.terraform.io")]
    for root in [*ROOTS, *(path for path in MODULES if (path / "tests").is_dir())]:
        where = copy / root.relative_to(INFRA)
        command = [program, "init", "-backend=false", "-input=false", "-no-color"]
        command += [f"-plugin-dir={mirror}" for mirror in mirrors]
        done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, timeout=110)
        if "Failed to query available provider packages" in done.stderr:
            pytest.skip("the plugin of the AWS provider is neither on this machine nor can it be downloaded")
        assert done.returncode == 0, done.stderr
    return program, copy, environment


def run(program: str, where: Path, environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run([program, *arguments], cwd=where, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("path", [path for path in ROOTS if path.parent.name == "environments"], ids=lambda p: p.name)
def test_terraform_validates(path: Path, initialized: tuple[str, Path, dict[str, str]]) -> None:
    program, copy, environment = initialized
    told = json.loads(run(program, copy / path.relative_to(INFRA), environment, "validate", "-json"))
    assert told["valid"] and told["warning_count"] == 0, told["diagnostics"]


@pytest.mark.parametrize(
    "path", [path for path in FOLDERS if (path / "tests").is_dir()], ids=lambda path: str(path.relative_to(INFRA))
)
def test_terraform_tests_pass(path: Path, initialized: tuple[str, Path, dict[str, str]]) -> None:
    program, copy, environment = initialized
    told = run(program, copy / path.relative_to(INFRA), environment, "test", "-no-color")
    assert re.search(r"Success! [1-9]\d* passed, 0 failed", told), told


def test_the_schema_is_that_of_the_plugin(initialized: tuple[str, Path, dict[str, str]]) -> None:
    program, copy, environment = initialized
    shown = json.loads(run(program, copy / "environments/dev", environment, "providers", "schema", "-json"))
    (plugin,) = [schema for name, schema in shown["provider_schemas"].items() if name.endswith("hashicorp/aws")]
    for kind, part in (("resource", "resource_schemas"), ("data", "data_source_schemas")):
        for name, ours in SCHEMA[kind].items():
            assert list(differences(ours, plugin[part][name]["block"], name)) == []


def differences(ours: dict[str, Any], block: dict[str, Any], where: str) -> Any:
    """CDKTF knows lists of objects that may be written as blocks only as blocks."""
    kinds = {
        name: "required" if body.get("required") else "optional"
        for name, body in block.get("attributes", {}).items()
        if body.get("required") or body.get("optional")
    }
    theirs = {name: kind for name, kind in kinds.items() if name not in ours["blocks"]}
    if theirs != ours["arguments"]:
        yield f"{where}: {sorted(theirs.items() ^ ours['arguments'].items())}"
    nested = block.get("block_types", {})
    if nested.keys() != ours["blocks"].keys() - kinds.keys():
        yield f"{where}: blocks {sorted(nested.keys() ^ ours['blocks'].keys())}"
    for name in nested.keys() & ours["blocks"].keys():
        yield from differences(ours["blocks"][name], nested[name]["block"], f"{where}.{name}")


def test_terraform_and_its_parser_read_the_same_policies(
    initialized: tuple[str, Path, dict[str, str]], tmp_path: Path
) -> None:
    """What the tests hold against the table is what Terraform itself would send to AWS."""
    program, copy, environment = initialized
    arguments = {
        "name": "team",
        "bucket": "bucket",
        "prefix": "team",
        "queue_arns": {
            name: f"arn:aws:sqs:eu-central-1:1:team-{name}" for name in ("tasks", "results", "dead_letters")
        },
        "inputs": ["data/in"],
        "outputs": ["other/out/"],
        "cluster_name": "fleet",
        "kms_key_arns": ["arn:aws:kms:eu-central-1:1:key/one"],
    }
    evaluated = evaluate(tmp_path, call("access", **arguments))
    ours = {
        document["__tfmeta"]["path"].rpartition(".")[2]: terraform_files.policy(document)
        for document in evaluated["aws_iam_policy_document"]
    }
    provider = """
        provider "aws" {
          region                      = "eu-central-1"
          access_key                  = "none"
          secret_key                  = "none"
          skip_credentials_validation = true
          skip_requesting_account_id  = true
          skip_metadata_api_check     = true
        }
    """
    root = copy / "environments" / "policies"
    root.mkdir()
    (root / "main.tf").write_text(provider + call("access", **arguments).replace('"./modules', '"../../modules'))
    mirrors = [f"-plugin-dir={path.parent}" for path in Path("/opt").glob("*/registry.terraform.io")]
    run(program, root, environment, "init", "-input=false", *mirrors)
    run(program, root, environment, "plan", "-input=false", "-out=plan")
    plan = json.loads(run(program, root, environment, "show", "-json", "plan"))
    planned = plan["planned_values"]["root_module"]["child_modules"][0]["resources"]
    theirs = {resource["index"]: json.loads(resource["values"]["policy"]) for resource in planned}
    assert theirs.keys() == ours.keys()
    for role in ours:
        assert allowed(ours[role]) == allowed(theirs[role]), role


def test_terraform_makes_a_target_in_localstack_and_jobs_run_through_it(
    initialized: tuple[str, Path, dict[str, str]], workplace: Workplace, components: Components
) -> None:
    program, copy, environment = initialized
    root, name = copy / "examples/localstack", f"applied-{uuid.uuid4().hex[:8]}"
    arguments = ["-no-color", "-input=false", f"-var=name={name}", f"-var=endpoint={components.aws_endpoint}"]
    run(program, root, environment, "apply", "-auto-approve", *arguments)
    target = json.loads(run(program, root, environment, "output", "-json", "target"))
    assert target["name"] == name
    workplace.environment.update(
        GRISTMILL_QUEUE=target["queue"],
        GRISTMILL_STORE=target["store"],
        AWS_REGION=target["region"],
        AWS_ENDPOINT_URL=target["endpoint"],
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",
    )
    checked = workplace.command("doctor")
    assert checked.exit_status == 0 and not re.search("^warning", checked.stdout, re.MULTILINE), str(checked)
    workplace.data(3)
    job = workplace.job("def run(files):\n    return [open(file).read() for file in files]\n")
    roles = [workplace.start("worker"), workplace.start("reducer")]
    ended = workplace.command("enqueue", job.file, "--wait")
    assert ended.exit_status == 0, str(ended)
    assert (workplace.folder / "output/rows.txt").read_text().split() == ["000", "001", "002"]
    for role in roles:
        role.process.terminate()
        assert role.wait().exit_status == 0


def allowed(document: dict[str, Any]) -> set[tuple[str, str, str]]:
    def many(value: str | list[str]) -> list[str]:
        return [value] if isinstance(value, str) else value

    return {
        (statement["Effect"], action, resource)
        for statement in document["Statement"]
        for action in many(statement["Action"])
        for resource in many(statement["Resource"])
    }
