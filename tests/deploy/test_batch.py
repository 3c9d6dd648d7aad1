"""infra/modules/batch: Terraform's plan is valid for AWS Batch, and creates an array of workers."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator

from terraform_files import INFRA
from terraform_plan import Plan
from terraform_variants import IMAGES

# Plans start the provider plugin, which takes a while on a busy machine.
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("terraform")]

README = (INFRA / "batch/README.md").read_text()
# Time from the notice to the reclaim, and the maximum delay until a worker sees it.
NOTICE_SECONDS, LOOK_SECONDS = 120, 5


def definition(made: Plan, role: str) -> dict[str, Any]:
    return made.resource(f'.aws_batch_job_definition.role["{role}"]')


def container(made: Plan, role: str) -> dict[str, Any]:
    return json.loads(definition(made, role)["container_properties"])


@pytest.mark.parametrize("role", ["worker", "reducer"])
def test_container_properties_match_the_batch_api(role: str, made: Plan) -> None:
    """Terraform passes the properties on unchanged."""
    given = {"jobDefinitionName": "x", "type": "container", "containerProperties": container(made, role)}
    operation = botocore.session.get_session().get_service_model("batch").operation_model("RegisterJobDefinition")
    assert ParamValidator().validate(given, operation.input_shape).generate_report() == ""


def value_after(command: list[str], name: str) -> int:
    return int(command[command.index(name) + 1])


def test_reclaimed_worker_exits_in_time_and_restarts(made: Plan) -> None:
    command = container(made, "worker")["command"]
    grace = value_after(command, "--grace")
    assert "--spot-notice" in command and grace + LOOK_SECONDS < NOTICE_SECONDS
    user_data = (INFRA / "modules/batch/user-data.txt").read_text()
    stop = re.search(r"ECS_CONTAINER_STOP_TIMEOUT=(\d+)s", user_data)
    assert grace < int(stop[1])
    for role in ("worker", "reducer"):
        (strategy,) = definition(made, role)["retry_strategy"]
        rules = [{key: value for key, value in rule.items() if value} for rule in strategy["evaluate_on_exit"]]
        # The first match applies: a job that fails for another reason is not repeated.
        first = [{"on_exit_code": str(value_after(command, "--spot-exit-status"))}] if role == "worker" else []
        retried = [*first, {"on_status_reason": "Host EC2*"}]
        assert rules == [*({"action": "retry", **rule} for rule in retried), {"action": "exit", "on_reason": "*"}]
        assert strategy["attempts"] == 10


def test_containers_of_a_machine_share_its_network_and_processors(made: Plan) -> None:
    for role in ("worker", "reducer"):
        found = container(made, role)
        variables = {entry["name"]: entry["value"] for entry in found["environment"]}
        assert (variables["GRISTMILL_LISTEN"], variables["GRISTMILL_QUEUE"]) == ("127.0.0.1:0", "sqs://sqs")
        assert found["command"][0] == role and "--idle-exit" in found["command"] and not found["privileged"]
    worker = container(made, "worker")
    sizes = {entry["type"]: entry["value"] for entry in worker["resourceRequirements"]}
    assert (
        value_after(worker["command"], "--process-count") == int(sizes["VCPU"]) and worker["image"] == IMAGES["worker"]
    )


def test_readme_commands_name_existing_resources(made: Plan) -> None:
    names = {values["name"] for values in made.resources("aws_batch_job_definition").values()}
    lines = [shlex.split(line)[3:] for line in README.splitlines() if line.startswith("aws batch submit-job ")]
    assert len(lines) == 2
    for words in lines:
        given = dict(zip(words[::2], words[1::2], strict=True))
        assert given["--job-queue"] == made.resource(".aws_batch_job_queue.this")["name"]
        assert given["--job-definition"] in names
