"""infra/: Terraform plans compared with AWS's rules, the provider's schema, and each other.

Plans are real (terraform_plan.py): tests that use them are skipped without Terraform or the provider's plugin.
"""

from __future__ import annotations

import json
import math
import re
import urllib.parse
import uuid
from pathlib import Path
from typing import Any

import pytest

import aws_rules
import provider_v6
import terraform_files
from harness import ROOT, Workplace
from iam_gate import is_allowed, many
from terraform_files import INFRA, MODULES, ROOTS, call, evaluate, text_of
from terraform_plan import REGION, SUBNETS, Plan, Terraform
from terraform_variants import (
    ACCESS,
    BALANCED,
    BOUNDARY,
    EGRESS,
    GPUS,
    INDEX,
    KEY,
    KEY_OF_SECRETS,
    OLD_BROKER,
    PASSWORD,
    PLATFORM,
    PORTAL,
    RABBITMQ,
    REGISTRY,
    REPLICA,
    SECRET,
    TAGS,
    TOKEN,
    TWO_GROUPS,
    platform,
    root_of,
    target,
)

# Terraform waits for resources, and test machines are busy.
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("terraform")]


@pytest.mark.parametrize("path", MODULES + ROOTS, ids=lambda path: str(path.relative_to(INFRA)))
def test_every_variable_is_used(path: Path) -> None:
    text = text_of(path)
    names = re.findall(r'variable "(\w+)"', text) + re.findall(r"^ +(\w+) += optional\(", text, re.MULTILINE)
    # Some fields travel to further modules as a whole.
    users = text + "".join(text_of(INFRA / "modules" / name) for name in ("observability", "rabbitmq", "store"))
    assert [name for name in names if not re.search(rf"\.{name}\b", users)] == []


def removed(text: str) -> dict[str, set[str]]:
    """Returns the names in Terraform text that version 6 of the provider does not have, or advises against."""
    known = provider_v6.table()
    known["data.aws_region"].discard("name")
    return {
        type_name: lost for type_name, names in provider_v6.used(text).items() if (lost := names - known[type_name])
    }


@pytest.mark.parametrize("path", MODULES + ROOTS, ids=lambda path: str(path.relative_to(INFRA)))
def test_every_name_exists_in_version_6_of_the_provider(path: Path) -> None:
    assert removed(text_of(path)) == {}
    numbers = r"^ *(associate_\w+|delete_on_termination|encrypted|audit) *= *[01]\n"
    assert not re.search(numbers, text_of(path), re.MULTILINE), "they must be true or false"


def test_names_that_version_6_removed_are_found() -> None:
    """As the upgrade guide lists them, in the repository of the provider: version-6-upgrade.html.markdown."""
    template = 'resource "aws_launch_template" "a" {\n  elastic_gpu_specifications {}\n'
    template += '  dynamic "elastic_inference_accelerator" { for_each = [] }\n}\n'
    queue = 'resource "aws_batch_job_queue" "a" { compute_environments = [data.aws_region.a.name] }\n'
    assert removed(template + queue + 'data "aws_region" "a" {}\n') == {
        "aws_launch_template": {"elastic_gpu_specifications", "elastic_inference_accelerator"},
        "aws_batch_job_queue": {"compute_environments"},
        "data.aws_region": {"name"},
    }


@pytest.mark.parametrize("path", ROOTS, ids=lambda path: str(path.relative_to(INFRA)))
def test_terraform_validates(path: Path, terraform: Terraform) -> None:
    told = json.loads(terraform.run(terraform.root(path), "validate", "-json"))
    assert told["valid"] and told["warning_count"] == 0, told["diagnostics"]


@pytest.mark.parametrize("rule", aws_rules.RULES, ids=lambda rule: rule.name)
def test_aws_rule_rejects_its_example(rule: aws_rules.Rule) -> None:
    assert rule.wrong(rule.refused)


def test_no_plan_breaks_an_aws_rule(made: Plan, changed: Plan) -> None:
    for rule in aws_rules.RULES:
        assert made.resources(rule.type_name), rule.name
    assert aws_rules.broken(made.resources) == []
    assert aws_rules.broken(changed.resources) == []


def number(text: str, name: str) -> int:
    """Returns a constant of the sources."""
    expression = re.search(rf"const {name}: \w+ = (?:Duration::from_secs\()?([\d* ]+)", text)[1]
    return math.prod(int(factor) for factor in expression.split("*"))


def test_queues_equal_those_that_doctor_creates(made: Plan) -> None:
    source = (ROOT / "services/queue/src/sqs/attributes.rs").read_text()
    queues = {queue["name"]: queue for queue in made.resources("aws_sqs_queue", "module.moved.").values()}
    assert queues.keys() == {"moved-control", "moved-dead-letters"}
    for queue in queues.values():
        assert queue["message_retention_seconds"] == number(source, "RETENTION")
        assert queue["visibility_timeout_seconds"] == number(source, "VISIBILITY")
        assert queue["receive_wait_time_seconds"] == number(source, "WAIT")
        assert queue["kms_master_key_id"] == KEY
        # Queues of jobs, which reducers create, name the dead letters; a list of allowed queues would shut them out.
        assert not queue["redrive_policy"] and not queue["redrive_allow_policy"]
    assert not made.resources("aws_sqs_queue_redrive_allow_policy")
    policies = made.resources("aws_sqs_queue_policy", "module.moved.").values()
    assert {policy["queue_url"] for policy in policies} == {queue["url"] for queue in queues.values()}
    for policy in policies:
        (statement,) = json.loads(policy["policy"])["Statement"]
        assert (statement["Effect"], statement["Action"]) == ("Deny", "sqs:*")
        assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_targets_whose_roles_could_use_the_queues_of_each_other_are_rejected(terraform: Terraform) -> None:
    """Roles of `team` have rights on `team-*`, and so on the queues of a target `team-a`."""
    root, sqs, team = terraform.infra / "environments/alike", terraform.client("sqs"), f"t{uuid.uuid4().hex[:8]}"
    root.mkdir()

    def write(*prefixes: str) -> None:
        calls: dict[str, Any] = {f"queue_{at}": ("queue", {"prefix": name}) for at, name in enumerate(prefixes)}
        (root / "main.tf").write_text(root_of(calls))
        terraform.init(root)

    there = [
        # Its own queues, and those of a job; a target whose name only has the same letters first.
        *(f"{team}-b-{end}" for end in ("control", "dead-letters", "control-a-0123456789abcdef-tasks")),
        f"{team}-bb-control",
    ]
    urls = [sqs.create_queue(QueueName=name)["QueueUrl"] for name in there]
    try:
        write(f"{team}-b", f"{team}-a")
        assert len(terraform.plan("environments/alike", {}).resources("aws_sqs_queue")) == 4
        for taken, other in ((f"{team}-b", f"{team}-b-c"), (f"{team}-b", team)):
            write(other)
            told = terraform.refusal("environments/alike", {})
            assert f"There is the target {taken}" in told and f"choose a name for {other} that" in told, told
    finally:
        for url in urls:
            sqs.delete_queue(QueueUrl=url)


def test_snapshots_and_markers_of_open_jobs_never_expire(made: Plan) -> None:
    """Later jobs use a snapshot without writing it again, and the reducer that ends a job removes its marker."""
    rules = made.resource("module.sqs.module.store.aws_s3_bucket_lifecycle_configuration.store")["rule"]
    expiring = {rule["filter"][0]["prefix"]: rule["expiration"][0]["days"] for rule in rules if rule["expiration"]}
    assert expiring == {"sqs/jobs/": 90, "sqs/doctor/": 1} and all(rule["status"] == "Enabled" for rule in rules)
    (uploads,) = [rule for rule in rules if rule["abort_incomplete_multipart_upload"]]
    assert uploads["filter"][0]["prefix"] == "", "of dead writers, wherever they are"


def test_tags_and_boundary_reach_every_resource(made: Plan, environments: dict[str, Plan]) -> None:
    for plan in (made, *environments.values()):
        roles = plan.resources("aws_iam_role")
        assert all(role["permissions_boundary"] == BOUNDARY for role in roles.values())
        for address, values in plan.resources().items():
            assert (values.get("tags_all") or {"CostCenter": "7"})["CostCenter"] == "7", address
    # The provider's tags do not apply to them: instances get tags from their template, tasks from their service.
    for template in made.resources("aws_launch_template").values():
        given = {part["resource_type"]: part["tags"]["CostCenter"] for part in template["tag_specifications"]}
        assert given == dict.fromkeys(("instance", "volume", "network-interface"), "7")
    assert {service["propagate_tags"] for service in made.resources("aws_ecs_service").values()} == {"SERVICE"}
    queue = environments["prod"].output("target")["queue"]
    assert queue.startswith("sqs://team?kms_key="), "the parameter of the platform was found"


def test_images_can_be_pushed_before_a_target_exists(terraform: Terraform) -> None:
    """With `-target`, as in scripts/deploy, the repositories of the platform become an output."""
    team = {"name": "team", "bucket": "team-store"}
    given = {"platform": terraform.platform(PLATFORM), "image_tag": "1", "target": team}
    plan = terraform.plan("environments/prod", given, options=["-target=data.aws_ssm_parameter.platform"])
    assert plan.output("repositories") == PLATFORM["repositories"]
    assert {change["type"] for change in plan.shown.get("resource_changes", [])} <= {"aws_ssm_parameter"}


def test_rabbitmq_clients_reach_amqp_and_the_management_api(made: Plan) -> None:
    rules = made.resources("aws_vpc_security_group_ingress_rule").items()
    rules = [rule for address, rule in rules if address.startswith("module.rabbitmq.")]
    tasks = made.output("rabbitmq")["resources"]["security_group_ids"]["tasks"]
    opened = {(rule["referenced_security_group_id"] or rule["cidr_ipv4"], rule["from_port"]) for rule in rules}
    assert opened == {(who, port) for who in (tasks, "sg-pipeline", "10.1.0.0/16") for port in (5671, 443, 15671)}
    out = made.resource('module.rabbitmq.aws_vpc_security_group_egress_rule.own["tasks: RabbitMQ"]')
    broker = made.output("rabbitmq")["resources"]["security_group_ids"]["broker"]
    assert (out["security_group_id"], out["referenced_security_group_id"], out["from_port"]) == (tasks, broker, 5671)
    assert made.output("rabbitmq")["target"]["management"] == f"https://b-1.mq.{REGION}.amazonaws.com"


def test_rabbitmq_processes_share_the_consumer_timeout(made: Plan) -> None:
    shown = made.output("rabbitmq")
    seconds = int(re.search(r"lease_seconds=(\d+)$", shown["target"]["queue"])[1])
    assert seconds > 12 * 3600, "RabbitMQ is there for what SQS cannot hold"
    configuration = made.resource("module.rabbitmq.module.rabbitmq[0].aws_mq_configuration.this")
    assert configuration["data"] == f"consumer_timeout = {seconds * 1000}"
    # scripts/broker-users creates the addresses of the roles from it.
    assert shown["broker"]["address"] == shown["target"]["queue"]
    for role, task in (("worker", "worker-cpu"), ("reducer", "reducer")):
        container = made.containers()[f"rabbitmq-{task}"]
        secret = shown["broker"]["secrets"][role]
        assert container["secrets"] == [{"name": "GRISTMILL_QUEUE", "valueFrom": f"{secret}:address::"}]
        assert "GRISTMILL_QUEUE" not in {variable["name"] for variable in container["environment"]}


def test_no_role_gets_the_administrator_password(made: Plan) -> None:
    broker = made.output("rabbitmq")["broker"]
    assert broker["secrets"].keys() == {"worker", "reducer", "enqueuer", "operator"}
    assert len({*broker["secrets"].values(), broker["administrator"]}) == 5
    shown = json.dumps(made.shown["planned_values"]["outputs"])
    assert PASSWORD not in shown and "${BROKER_USER}:${BROKER_PASSWORD}@" in shown


def test_every_role_reads_its_own_secrets_alone(made: Plan) -> None:
    def read(name: str, role: str) -> set[str]:
        policy = made.resource(f'module.{name}.aws_iam_role_policy.read_secret["{role}"]')
        return {resource for _, action, resource in allowed(json.loads(policy["policy"])) if "GetSecretValue" in action}

    for name, roles in (("rabbitmq", ["worker", "reducer"]), ("single", ["worker", "reducer", "portal"])):
        secrets = made.output(name)["broker"]["secrets"]
        assert [read(name, role) for role in roles] == [{secrets[role]} for role in roles]
    assert read("large", "portal") == {TOKEN}
    # Fields of one secret, for scripts of jobs.
    assert read("large", "worker") == {SECRET}
    secrets = made.containers()["large-worker-cpu"]["secrets"]
    assert secrets == [{"name": name, "valueFrom": f"{SECRET}:{name}::"} for name in ("PASSWORD", "USER_NAME")]
    environment = {entry["name"]: entry["value"] for entry in made.containers()["large-worker-cpu"]["environment"]}
    assert environment["GRISTMILL_PASS_ENVIRONMENT"] == "PASSWORD,USER_NAME", "they are for scripts"


def test_secrets_with_keys_of_the_caller_are_decrypted_for_their_tasks_alone(made: Plan) -> None:
    """By the roles with which ECS starts tasks that have such secrets, through Secrets Manager, with these keys."""

    def decrypts(name: str, role: str, key: str, service: str | None, action: str = "kms:Decrypt") -> bool:
        policies = made.resources("aws_iam_role_policy", f"module.{name}.aws_iam_role_policy.read_secret").items()
        context = {"kms:ViaService": service} if service else {}
        documents = [json.loads(values["policy"]) for address, values in policies if address.endswith(f'["{role}"]')]
        return any(is_allowed(document, action, key, context=context) for document in documents)

    manager = f"secretsmanager.{REGION}.amazonaws.com"
    for name, role, expected in (
        ("large", "worker", True),
        ("large", "portal", True),
        ("large", "reducer", False),  # It has no secret.
        ("single", "worker", False),  # That of the broker has the key of the target.
        ("single", "portal", False),
    ):
        assert decrypts(name, role, KEY_OF_SECRETS, manager) == expected, (name, role)
    for wrong in (
        (KEY_OF_SECRETS, None),
        (KEY_OF_SECRETS, f"s3.{REGION}.amazonaws.com"),
        (f"{KEY}-of-others", manager),
        (KEY_OF_SECRETS, manager, "kms:GenerateDataKey"),
    ):
        assert not decrypts("large", "worker", *wrong), wrong
    # Not by containers, in which scripts of jobs run.
    for policy in made.resources("aws_iam_policy", "module.large.").values():
        assert not is_allowed(
            json.loads(policy["policy"]), "kms:Decrypt", KEY_OF_SECRETS, context={"kms:ViaService": manager}
        )


def test_queues_of_jobs_have_the_key_and_the_tags_of_the_target(made: Plan) -> None:
    """The address says both, also in the `gristmill.toml` that `gristmill target import` writes."""
    keys = {"large": KEY, "own": made.output("own")["resources"]["kms_key_arn"]}
    for name, key in keys.items():
        queue = made.output(name)["target"]["queue"]
        address = urllib.parse.urlsplit(queue)
        assert (address.scheme, address.netloc) == ("sqs", name)
        tags = {f"tag.{tag}": value for tag, value in TAGS.items()}
        assert dict(urllib.parse.parse_qsl(address.query)) == {"kms_key": key, **tags}
        environment = made.containers()[f"{name}-reducer"]["environment"]
        assert {"name": "GRISTMILL_QUEUE", "value": queue} in environment
    # Those that send and receive use the key of the queues.
    for role, actions in {
        "worker": {"kms:Decrypt", "kms:GenerateDataKey"},
        "reducer": {"kms:Decrypt", "kms:GenerateDataKey"},
        "enqueuer": {"kms:Decrypt", "kms:GenerateDataKey"},
        "operator": {"kms:Decrypt", "kms:GenerateDataKey"},
        "portal": {"kms:Decrypt"},
    }.items():
        policy = json.loads(made.resource(f'module.own.module.access.aws_iam_policy.role["{role}"]')["policy"])
        assert {action for _, action, key in allowed(policy) if key == keys["own"]} == actions, role


def test_target_without_a_key_names_none(environments: dict[str, Plan]) -> None:
    """In `environments/dev` SQS encrypts with its own key."""
    queue = environments["dev"].output("target")["queue"]
    assert queue.startswith("sqs://gristmill-dev?") and "kms_key" not in queue and "tag.CostCenter=7" in queue


def test_roles_get_the_settings_of_the_caller(made: Plan, changed: Plan) -> None:
    for name in ("large-worker-cpu", "large-reducer", "large-portal"):
        variables = {one["name"]: one["value"] for one in made.containers()[name]["environment"]}
        queue = made.output("large")["target"]["queue"]
        assert (variables["GRISTMILL_QUEUE"], variables["GRISTMILL_STORE"]) == (queue, "s3://store/large"), name
        assert variables["PIP_INDEX_URL"] == INDEX
    assert {"name": "GRISTMILL_LEASE_SECONDS", "value": "60"} in changed.containers()["sqs-worker-cpu"]["environment"]


def test_outputs_name_the_resources(made: Plan) -> None:
    shown = made.output("large")["resources"]
    assert [name for name, value in shown.items() if value is None] == []
    assert shown["services"] == {role: f"large-{role}" for role in ("worker-cpu", "reducer", "portal")}
    roles = ("worker", "reducer", "portal")
    assert shown["role_arns"].keys() == {f"{role}{end}" for role in roles for end in ("", "_execution")}
    queues = made.resources("aws_sqs_queue", "module.large.").values()
    assert set(shown["queue_arns"].values()) == {queue["arn"] for queue in queues}
    assert made.output("rabbitmq")["resources"]["queue_arns"] is None


def test_changed_initial_password_changes_no_resource(made: Plan, changed: Plan) -> None:
    """The provider cannot change users of a broker, so Terraform must not report a change."""
    for type_name in ("aws_mq_broker", "aws_secretsmanager_secret_version", "aws_ecs_service"):
        before, after = (
            {address: action for address, action in plan.actions(type_name).items() if "module.rabbitmq." in address}
            for plan in (made, changed)
        )
        assert before == after and before, type_name


def test_gpu_worker_fits_into_every_instance_type(made: Plan) -> None:
    share = made.output("shared")["platform"]["gpu_groups"]["a10"]
    for name in GPUS["a10"]["instance_types"]:
        memory, processors, gpus = aws_rules.GPU_INSTANCES[name]
        assert share["memory_mib"] * gpus <= memory * aws_rules.REGISTERED_SHARE, name
        assert share["cpu_units"] * gpus <= processors * 1024, name
    assert share["memory_mib"] >= 0.85 * 16384, "and is not much smaller than the smallest has room for"


def test_gpu_worker_has_libraries_and_shared_memory(made: Plan, changed: Plan) -> None:
    task = made.resource('module.gpus.aws_ecs_task_definition.role["gpu-worker-gpu"]')
    container = made.containers()["gpus-gpu-worker-gpu"]
    assert (task["cpu"], task["memory"]) == ("4096", "14745"), "its share of an instance"
    assert container["image"] == f"{REGISTRY}/gristmill-worker:1-cuda"
    assert container["resourceRequirements"] == [{"type": "GPU", "value": "1"}]
    assert container["linuxParameters"]["sharedMemorySize"] >= 1024
    assert made.containers()["gpus-reducer"]["image"] == f"{REGISTRY}/gristmill:1"
    assert changed.containers()["gpus-gpu-worker-gpu"]["image"] == "registry/own:2"


def test_pools_of_workers_have_their_own_sizes_images_and_architectures(made: Plan) -> None:
    tasks = {
        pool: made.resource(f'module.pools.aws_ecs_task_definition.role["worker-{pool}"]') for pool in ("large", "arm")
    }
    assert (tasks["large"]["cpu"], tasks["large"]["memory"]) == ("16384", "65536")
    assert [task["runtime_platform"][0]["cpu_architecture"] for task in tasks.values()] == ["X86_64", "ARM64"]
    assert made.containers()["pools-worker-arm"]["image"] == "registry/arm:1"
    assert made.resource('module.pools.aws_appautoscaling_target.workers["worker-arm"]')["min_capacity"] == 1
    # One IAM role for all, which policies of other resources can name.
    assert len({task["task_role_arn"] for task in tasks.values()}) == 1


def test_target_without_pools_has_reducers_alone(made: Plan) -> None:
    assert [name for name in made.containers() if name.startswith("own-")] == ["own-reducer"]


def test_portal_admits_its_clients_alone(made: Plan) -> None:
    """Without `portal` there is none; with it, nothing but the named clients connects."""
    names = {address: service["name"] for address, service in made.resources("aws_ecs_service").items()}
    assert {name for name in names.values() if "portal" in name} == {"large-portal", "moved-portal", "single-portal"}
    of_sqs = made.output("sqs")["resources"]["security_group_ids"]
    assert of_sqs["portal"] is None
    for name, client in (("large", "sg-bastion"), ("moved", of_sqs["tasks"]), ("single", "sg-balancer")):
        group = made.output(name)["resources"]["security_group_ids"]["portal"]
        service = made.resource(f'module.{name}.aws_ecs_service.resident["portal"]')
        (network,) = service["network_configuration"]
        assert (network["security_groups"], network["assign_public_ip"]) == ([group], False)
        rules = made.resources("aws_vpc_security_group_ingress_rule", f"module.{name}.").values()
        opened = [rule for rule in rules if rule["security_group_id"] == group]
        assert [(rule["referenced_security_group_id"], rule["from_port"]) for rule in opened] == [(client, 9464)]
    service = made.resource('module.single.aws_ecs_service.resident["portal"]')
    (balancer,) = service["load_balancer"]
    assert balancer["target_group_arn"] == BALANCED["target_group_arn"]
    assert (balancer["container_name"], balancer["container_port"]) == ("gristmill", 9464)
    # The broker knows it, too.
    rules = made.resources("aws_vpc_security_group_ingress_rule", "module.single.module.rabbitmq").values()
    portal = made.output("single")["resources"]["security_group_ids"]["portal"]
    assert 5671 in {rule["from_port"] for rule in rules if rule["referenced_security_group_id"] == portal}


def test_portal_is_read_only_behind_a_token_or_a_header(made: Plan, changed: Plan) -> None:
    listens = ["portal", "--no-open", "--listen", "0.0.0.0:9464"]
    container = made.containers()["large-portal"]
    assert container["command"] == [*listens, "--read-only"]
    assert container["secrets"] == [{"name": "GRISTMILL_PORTAL_TOKEN", "valueFrom": TOKEN}]
    assert container["image"] == f"{REGISTRY}/gristmill:1"
    assert TOKEN not in json.dumps(container["environment"])
    balanced = made.containers()["single-portal"]
    header = ["--trust-header", "X-Amzn-Oidc-Identity", "--host", "jobs.example"]
    assert balanced["command"] == [*listens, "--read-only", *header]
    assert [secret["name"] for secret in balanced["secrets"]] == ["GRISTMILL_QUEUE"]

    def policies(plan: Plan, name: str) -> set[str]:
        attached = plan.resources("aws_iam_role_policy_attachment", f"module.{name}.").items()
        role = plan.resource(f'module.{name}.aws_iam_role.role["portal-task"]')["name"]
        return {values["policy_arn"] for _, values in attached if values["role"] == role}

    assert policies(made, "large") == {made.output("large")["policy_arns"]["portal"]}
    arns = made.output("large")["policy_arns"]
    assert policies(changed, "large") == {arns["portal"], arns["enqueuer"]}
    assert not made.resources("aws_iam_role_policy", "module.large.aws_iam_role_policy.portal_disposes")
    disposes = changed.resource("module.large.aws_iam_role_policy.portal_disposes[0]")["policy"]
    allowed = {statement["Action"]: statement["Resource"] for statement in json.loads(disposes)["Statement"]}
    letters = changed.resource('module.large.module.queue[0].aws_sqs_queue.own["dead-letters"]')["arn"]
    assert allowed["sqs:DeleteMessage"] == letters, allowed
    queues = [letters.replace("dead-letters", f"*-{part}") for part in ("results", "tasks")]
    assert sorted(allowed["sqs:SendMessage"]) == queues, allowed
    assert changed.containers()["large-portal"]["command"] == listens
    assert changed.containers()["large-portal"]["image"] == "registry/portal:2"


REPLACED = (["delete", "create"], ["create", "delete"])


def test_services_are_changed_in_place_and_failed_deployments_rolled_back(made: Plan, changed: Plan) -> None:
    for type_name in ("aws_ecs_service", "aws_sqs_queue", "aws_s3_bucket", "aws_mq_broker", "aws_ecs_cluster"):
        for plan in (made, changed):
            actions = plan.actions(type_name)
            assert actions and not [address for address, action in actions.items() if action in REPLACED]
    actions = changed.actions("aws_ecs_service")
    assert actions['module.sqs.aws_ecs_service.workers["worker-cpu"]'] == ["update"], "another floor"
    # ECS cannot move a service from Fargate to instances: a new service starts, and jobs continue.
    assert actions['module.moved.aws_ecs_service.workers["gpu-worker-cpu"]'] == ["create"]
    assert actions['module.moved.aws_ecs_service.workers["worker-cpu"]'] == ["delete"]
    services = made.resources("aws_ecs_service")
    assert {name.rpartition(".")[2].partition("[")[0] for name in services} == {"workers", "resident"}
    for name, service in services.items():
        assert service["deployment_circuit_breaker"] == [{"enable": True, "rollback": True}], name


def test_fleet_is_spot_with_an_on_demand_minimum_and_is_not_doubled_by_a_deployment(made: Plan) -> None:
    service = made.resource('module.sqs.aws_ecs_service.workers["worker-cpu"]')
    for pool, expected in {
        "sqs.worker-cpu": {(1, "FARGATE", 1), (0, "FARGATE_SPOT", 99)},
        "pools.worker-small": {(0, "FARGATE_SPOT", 100)},
        "pools.worker-large": {(0, "FARGATE", 100)},
        "pools.gpu-worker-gpu": {(0, "fleet-gpu-a10", 1)},
        "pools.gpu-worker-gpus": {(0, "fleet-gpu-h200", 1)},
    }.items():
        target_name, _, name = pool.partition(".")
        strategy = made.resource(f'module.{target_name}.aws_ecs_service.workers["{name}"]')[
            "capacity_provider_strategy"
        ]
        assert {tuple(part.values()) for part in strategy} == expected, pool
    workers = [found for address, found in made.resources("aws_ecs_service").items() if ".workers[" in address]
    assert all(found["tags"] == {"GristmillWorker": found["name"].partition("-")[0]} for found in workers)
    assert (service["deployment_minimum_healthy_percent"], service["deployment_maximum_percent"]) == (0, 100)
    group = made.resource('module.shared.aws_autoscaling_group.gpu["a10"]')
    (shares,) = group["mixed_instances_policy"][0]["instances_distribution"]
    assert (group["min_size"], group["protect_from_scale_in"], shares["on_demand_base_capacity"]) == (0, True, 1)


def test_containers_have_known_settings_and_write_only_to_volumes(made: Plan, workplace: Workplace) -> None:
    """Those of ECS and of Batch."""
    settings = (ROOT / "services/cli/src/settings.rs").read_text()
    batch = made.resources("aws_batch_job_definition").values()
    containers = [*made.containers().values(), *(json.loads(found["container_properties"]) for found in batch)]
    for found in containers:
        assert (found["user"], found["readonlyRootFilesystem"]) == ("10001", True)
        writable = {mount["containerPath"] for mount in found["mountPoints"]}
        writable |= {entry["containerPath"] for entry in found.get("linuxParameters", {}).get("tmpfs", [])}
        assert writable == {"/tmp", "/var/cache/gristmill"}
        names = {entry["name"] for entry in [*found["environment"], *found.get("secrets", [])]}
        assert {"GRISTMILL_QUEUE", "GRISTMILL_STORE", "GRISTMILL_LISTEN", "AWS_REGION"} <= names
        assert "GRISTMILL_LEASE_SECONDS" not in names, "by default a killed worker is noticed within ten seconds"
        assert all(f'"{name}"' in settings for name in names if name.startswith("GRISTMILL_")), names
    for found in made.containers().values():
        assert found["healthCheck"]["command"] == ["CMD", "gristmill", "health"]
        assert found["command"][0] != "worker" or int(found["command"][2]) < found["stopTimeout"] == 120
    for command in {tuple(found["command"]) for found in containers}:
        assert workplace.command(*command, "--help").exit_status == 0, command
        assert workplace.command(*command, "--no-such", "--help").exit_status != 0


def destinations(plan: Plan, module: str) -> set[tuple[str, int]]:
    """Returns what the security groups of a module may connect to, each address, group or list with its port."""
    rules = plan.resources("aws_vpc_security_group_egress_rule", f"module.{module}.aws").values()
    assert {rule["from_port"] - rule["to_port"] for rule in rules} == {0}
    return {
        (rule["cidr_ipv4"] or rule["referenced_security_group_id"] or rule["prefix_list_id"], rule["from_port"])
        for rule in rules
    }


def test_tasks_connect_to_what_the_target_allows(made: Plan) -> None:
    everywhere, further = ("0.0.0.0/0", 443), {("10.0.0.5/32", 3128), ("sg-database", 5432), ("pl-files", 2049)}
    assert destinations(made, "sqs") == {everywhere}
    broker = made.output("rabbitmq")["resources"]["security_group_ids"]["broker"]
    assert destinations(made, "rabbitmq") == {everywhere, (broker, 5671)}
    # Without public egress AWS is behind the endpoints, and S3 behind the gateway.
    assert destinations(made, "private") == {("sg-endpoints", 443), ("pl-s3", 443), *further}
    assert destinations(made, "own") == {("10.0.0.5/32", 443)}, "the platform has no endpoints, but the caller does"


def test_instances_connect_to_aws_alone(made: Plan) -> None:
    assert destinations(made, "shared") == {("0.0.0.0/0", 443)}
    shown = made.output("offline_gpus")
    endpoints = shown["platform"]["endpoints"]
    assert destinations(made, "offline_gpus") == {(name, 443) for name in endpoints.values()}
    assert endpoints["security_group_id"] == shown["resources"]["security_group_ids"]["endpoints"]


def test_endpoints_serve_principals_and_resources_of_known_accounts(made: Plan) -> None:
    """And ECR's bucket with the layers of images, which belongs to AWS."""
    endpoints = made.resources("aws_vpc_endpoint", "module.offline.").values()
    policies = {found["service_name"].rpartition(".")[2]: json.loads(found["policy"]) for found in endpoints}
    layers = f"arn:aws:s3:::prod-{REGION}-starport-layer-bucket/sha256"
    own, named, foreign = "123456789012", "210987654321", "999999999999"
    for service, policy in policies.items():
        for principal, owner, expected in (
            (own, own, True),
            (own, named, True),
            (own, None, True),  # Actions without a resource.
            (own, foreign, False),
            (foreign, own, False),
            (None, own, False),
        ):
            context = {"aws:PrincipalAccount": principal, "aws:ResourceAccount": owner}
            given = {key: value for key, value in context.items() if value}
            assert is_allowed(policy, "s3:PutObject", "arn:aws:s3:::x/y", context=given) == expected, (service, given)
        is_s3 = service == "s3"
        assert is_allowed(policy, "s3:GetObject", layers, context={"aws:ResourceAccount": foreign}) == is_s3
        assert not is_allowed(policy, "s3:PutObject", layers, context={"aws:ResourceAccount": foreign})


def test_target_may_have_a_key_of_its_own(made: Plan) -> None:
    """It encrypts all that the key of the platform would, and roles have no right on the latter."""
    key = made.output("own")["resources"]["kms_key_arn"]
    assert key == made.resource("module.own.module.key[0].aws_kms_key.this")["arn"] != KEY
    for type_name, field in (
        ("aws_sqs_queue", "kms_master_key_id"),
        ("aws_cloudwatch_log_group", "kms_key_id"),
        ("aws_sns_topic", "kms_master_key_id"),
    ):
        assert {found[field] for found in made.resources(type_name, "module.own.").values()} == {key}, type_name
    (rule,) = made.resource("module.own.module.store.aws_s3_bucket_server_side_encryption_configuration.store")["rule"]
    assert rule["apply_server_side_encryption_by_default"][0]["kms_master_key_id"] == key
    for policy in made.resources("aws_iam_policy", "module.own.").values():
        keys = {resource for _, action, resource in allowed(json.loads(policy["policy"])) if action.startswith("kms:")}
        assert keys <= {key}
    assert made.output("sqs")["resources"]["kms_key_arn"] == KEY
    # CloudWatch encrypts the logs of this target with it, and of no other.
    document = json.loads(made.resource("module.own.module.key[0].aws_kms_key.this")["policy"])
    group = f"arn:aws:logs:{REGION}:123456789012:log-group:/gristmill"
    for name, expected in ((f"{group}/own", True), (f"{group}/other", False)):
        context = {"kms:EncryptionContext:aws:logs:arn": name}
        encrypts = [
            statement
            for statement in document["Statement"]
            if statement["Principal"].get("Service", "").startswith("logs.")
        ]
        assert is_allowed({"Statement": encrypts}, "kms:Encrypt", key, context=context) == expected


def test_outputs_are_kept_as_the_caller_chooses(made: Plan) -> None:
    store = "module.{}.module.store.aws_s3_bucket_{}.store"

    def status(name: str) -> str:
        return made.resource(store.format(name, "versioning"))["versioning_configuration"][0]["status"]

    assert (status("sqs"), status("private")) == ("Disabled", "Enabled")
    rules = {rule["id"]: rule for rule in made.resource(store.format("private", "lifecycle_configuration"))["rule"]}
    outputs = rules["outputs"]
    assert outputs["filter"][0]["prefix"] == "outputs/" and outputs["expiration"][0]["days"] == 400
    assert [(step["days"], step["storage_class"]) for step in outputs["transition"]] == [(10, "GLACIER_IR")]
    versions = {
        rule["filter"][0]["prefix"]: rule["noncurrent_version_expiration"][0]["noncurrent_days"]
        for rule in rules.values()
        if rule["noncurrent_version_expiration"]
    }
    assert versions == {"": 30, "private/": 1}, "objects of jobs change every few seconds"
    (rule,) = made.resource('module.private.aws_s3_bucket_replication_configuration.outputs["outputs"]')["rule"]
    (destination,) = rule["destination"]
    assert (rule["filter"][0]["prefix"], destination["bucket"]) == ("outputs/", REPLICA["bucket_arn"])
    assert destination["encryption_configuration"][0]["replica_kms_key_id"] == REPLICA["kms_key_arn"]
    assert rule["delete_marker_replication"] == [{"status": "Disabled"}]
    policy = json.loads(made.resource('module.private.aws_iam_role_policy.replica["outputs"]')["policy"])
    actions = {action for _, action, resource in allowed(policy) if resource.startswith(REPLICA["bucket_arn"])}
    assert actions == {"s3:ReplicateObject", "s3:ReplicateTags", "s3:ObjectOwnerOverrideToBucketOwner"}, "no deletion"


@pytest.mark.parametrize(("name", "kind"), [("offline", "FARGATE"), ("offline_gpus", "EC2"), ("shared", None)])
def test_private_subnets_without_nat_have_every_endpoint(name: str, kind: str | None, made: Plan) -> None:
    endpoints = made.resources("aws_vpc_endpoint").items()
    names = {found["service_name"].partition(f"{REGION}.")[2] for address, found in endpoints if f".{name}." in address}
    assert names == (aws_rules.ENDPOINTS[kind] if kind else set())
    if kind:
        gateway = made.resource(f"module.{name}.aws_vpc_endpoint.s3[0]")
        assert (gateway["vpc_endpoint_type"], gateway["route_table_ids"]) == ("Gateway", ["rtb-1"])
        assert set(made.output(name)["resources"]["endpoint_services"]) == names


TWO = {"one": {}, "two": {}}

# Invalid settings of a target, other arguments among them, and Terraform's errors.
CARELESS: list[tuple[dict[str, Any], str]] = [
    ({"broker": "rabbitmq", "password": "short"}, "RabbitMQ requires `broker_password`: 12 to 250"),
    ({"tag": "latest"}, "A tag that never moves"),
    ({"workers": {"cpu": {"cpu": 4096, "memory": 32768}}}, "choose 8192 to 30720 MiB in steps of 1024"),
    ({"workers": {"cpu": {"cpu": 3000}}}, "Fargate has no tasks of 3000 processor units"),
    ({"workers": {"cpu": {"min": 5, "max": 4}}}, "`max` of a pool is a whole number"),
    ({"workers": {"cpu": {"stop_seconds": 600}}}, "ECS does not wait longer"),
    ({"workers": {"cpu": {"gpus": 1, "memory": 16384}}}, "No instance has room for a worker of the pool cpu"),
    ({"workers": {"cpu": {"gpus": 1, "disk_gib": 50}}}, "set `disk_gib` of its group in the platform"),
    (
        {"workers": {"cpu": {"gpus": 1}}, "of": {**PLATFORM, "gpu_groups": {}}},
        "names one of the groups of the platform",
    ),
    ({"workers": {"gpu": {"gpus": 1}}, "of": TWO_GROUPS}, "unless there is only one; there are: a10, h200."),
    (
        {"workers": {"gpu": {"gpus": 1, "gpu_group": "b200"}}, "of": TWO_GROUPS},
        "names one of the groups of the platform",
    ),
    ({"portal": {"client_cidr_blocks": ["10.0.0.0/16"]}}, "either `token_secret_arn` or `trust_header`"),
    ({"portal": {**PORTAL, "trust_header": "X-User"}}, "either `token_secret_arn` or `trust_header`"),
    ({"portal": {**BALANCED, "client_cidr_blocks": ["10.0.0.0/16"]}}, "only the load balancer may connect"),
    ({"portal": {**BALANCED, "hosts": []}}, "Behind a load balancer the portal requires `hosts`"),
    ({"portal": {"token_secret_arn": TOKEN}}, "Nothing can connect to the portal"),
    ({"portal": {**PORTAL, "client_cidr_blocks": ["0.0.0.0/0"]}}, "not the whole internet"),
    ({**RABBITMQ, "rabbitmq": {"lease_seconds": 3_000_000}}, "from 300 to 2147483"),
    ({**RABBITMQ, "rabbitmq": {"client_cidr_blocks": ["0.0.0.0/0"]}}, "not the whole internet"),
    ({**RABBITMQ, "rabbitmq": {**OLD_BROKER, "is_cluster": True}}, "mq.t3 has no clusters"),
    ({**RABBITMQ, "rabbitmq": {"instance_type": "mq.m5.large"}}, "RabbitMQ 4 runs only on instances"),
    (
        {**RABBITMQ, "inputs": [f"the-data-of-a-team-{number}/inputs" for number in range(60)]},
        "more than the 6144 characters",
    ),
    ({"environment": {"GRISTMILL_QUEUE": "sqs://other"}}, "the target itself sets region, queue"),
    ({"secret_kms_key_arns": [f"arn:aws:kms:{REGION}:123456789012:alias/one"]}, "are ARNs of KMS keys"),
    ({"input_kms_key_arns": [f"arn:aws:kms:{REGION}:123456789012:key/*"]}, "are ARNs of KMS keys"),
    ({"environment": {"GRISTMILL_CLOUDWATCH_NAMESPACE": "Own"}}, "the target itself sets region, queue"),
    ({"workers": {"cpu": {"processes": 0}}}, "`processes` of a pool is a whole number"),
    (
        {"workers": {"gpu": {"gpus": 16}}},
        "An alarm adds up nine needs, and the GPUs and labels of the pool gpu meet 17",
    ),
    ({"workers": {"cpu": {"labels": {f"l{number}": "x" for number in range(4)}}}}, "of the pool cpu meet 16"),
    ({"workers": TWO}, "Nothing would start workers of the pool two"),
    ({"workers": {name: {"requires": ["any"]} for name in TWO}}, "starts workers of one pool only"),
    ({"workers": {"cpu": {"labels": {"zone": "b"}, "requires": ["label zone=a"]}}}, "needs that its workers meet"),
    ({"workers": {"cpu": {"requires": ["2 GPUs"]}}}, "needs that its workers meet"),
    ({"workers": {"cpu": {"cpu": 4096, "requires": ["8 processors"]}}}, "needs that its workers meet"),
    ({"workers": {"cpu": {"labels": {"zone": "a b"}}}}, "Names and values of `labels`"),
    ({"workers": {"Cpu": {}}}, "The name of a pool"),
    ({"workers": {"cpu": {"on_demand_percent": 0}}}, "at least 1 with `on_demand_floor`"),
    ({"public_egress": False}, "Without `public_egress` tasks could not reach AWS"),
    ({"egress": {"both": {**EGRESS["proxy"], "prefix_list_id": "pl-1"}}}, "Each of `egress` has a name"),
    ({"egress": {"wide": {"port": 443, "cidr_block": "everywhere"}}}, "Each of `egress` has a name"),
    ({"kms_key_arn": "alias/own"}, "`kms_key_arn` is the ARN of a KMS key"),
    ({"retention": {"replica": REPLICA}}, "`retention.replica` requires versions"),
    ({"retention": {"version_days": 1, "replica": {"bucket_arn": "arn:aws:s3:::x"}}}, "only with a key for the copies"),
    ({"retention": {"cold_days": 30, "output_days": 10}}, "outputs expire after they have become cold"),
    ({"environment": {"GRISTMILL_LABELS": "a=b"}}, "the target itself sets region, queue"),
    ({"alarm_thresholds": {"no_worker_minutes": 1}}, "`no_worker_minutes` and `missing_minutes` are 5 to 1440"),
    ({"alarm_thresholds": {"no_progress_minutes": 31}}, "`no_progress_minutes` is 5 to 1440, in steps of 5"),
    (
        {"environment": {"ONE": "1"}, "workers": {"cpu": {"secrets": {"ONE": SECRET}}}},
        "variables that are not in `environment`",
    ),
    (
        {"workers": {"cpu": {"secrets": {"ONE": "arn:aws:ssm:eu-central-1:1:parameter/one"}}}},
        "are ARNs in Secrets Manager",
    ),
]


def test_invalid_values_are_rejected_by_the_plan(terraform: Terraform) -> None:
    root = terraform.infra / "environments/careless"
    root.mkdir()
    left = {
        f"careless_{number}": (target(f"target-{number}", **change), said)
        for number, (change, said) in enumerate(CARELESS)
    }
    left["no_way"] = (platform("no-way", public_egress=False), "Without `public_egress` nothing could reach AWS")
    left["no_gpus"] = (platform("fleet", gpu_groups={"cpu": {"instance_types": ["m5.large"]}}), "m5.large has no GPU")
    left["long_prefix"] = (("queue", {"prefix": "x" * 41}), "`prefix` has 1 to 40 letters")
    # Terraform reports the errors of one stage at a time: variables, data sources, plan.
    for _ in range(3):
        if left:
            text = root_of({name: module for name, (module, _) in left.items()})
            (root / "main.tf").write_text(terraform.in_network(text))
            terraform.init(root)
            told = terraform.refusal("environments/careless", {})
            left = {name: (module, said) for name, (module, said) in left.items() if said not in told}
    assert [said for _, said in left.values()] == [], told


def test_unknown_fields_of_variables_are_rejected(terraform: Terraform) -> None:
    """Terraform itself ignores unknown fields of objects."""
    slips = {
        "workers": {"cpu": {"memroy": 8192}},
        "reducer": {"counts": 1},
        "rabbitmq": {"lease": 1},
        "alarm_thresholds": {"oldest_task": 5},
        "portal": {**PORTAL, "token": "x"},
    }
    team = {"name": "team", "bucket": "team-store", "worker_count": 1}
    given = {"platform": terraform.platform(PLATFORM), "image_tag": "1", "target": {**team, **slips}}
    told = terraform.refusal("environments/prod", given)
    slips["workers.cpu"] = slips.pop("workers")["cpu"]
    fields = sorted(["target.worker_count", *(f"{name}.{list(value)[-1]}" for name, value in slips.items())])
    assert f"Unknown fields: {'; '.join(fields)}." in told
    fleet = {"name": "fleet", "vpc_id": "vpc-1", "subnet_ids": SUBNETS}
    groups = {"a10": {"instance_types": ["g5.xlarge"], "instance_max": 2}}
    told = terraform.refusal("environments/platform", {"platform": {**fleet, "gpu_groups": groups, "subnets": []}})
    assert "Unknown fields: gpu_groups.a10.instance_max; platform.subnets." in told
    told = terraform.refusal("environments/platform", {"platform": {**fleet, "subnet_ids": SUBNETS[:1]}})
    assert "`subnet_ids` are at least two." in told


def test_target_passes_its_resources_to_the_policies(made: Plan, tmp_path: Path) -> None:
    """The policies that tests compare with the table are those that Terraform sends to AWS."""
    arns = {queue["name"]: queue["arn"] for queue in made.resources("aws_sqs_queue", "module.sqs.").values()}
    arguments = {
        **ACCESS,
        "name": "sqs",
        "bucket": "store",
        "prefix": "sqs",
        "queue_arns": {name: arns[f"sqs-{name.replace('_', '-')}"] for name in ("control", "dead_letters")},
        "inputs": ["store/inputs", *ACCESS["inputs"]],
        "outputs": ["store/outputs", *ACCESS["outputs"]],
        "cluster_name": "fleet",
        "kms_key_arns": [KEY],
    }
    ours = terraform_files.policies(evaluate(tmp_path, call("access", **arguments)))
    planned = made.resources("aws_iam_policy", "module.sqs.").values()
    theirs = {values["name"].removeprefix("sqs-"): json.loads(values["policy"]) for values in planned}
    assert theirs.keys() == ours.keys()
    for role in ours:
        assert allowed(ours[role]) == allowed(theirs[role]), role


def allowed(document: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (statement["Effect"], action, resource)
        for statement in document["Statement"]
        for action in many(statement["Action"])
        for resource in many(statement["Resource"])
    }
