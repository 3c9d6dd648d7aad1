"""infra/examples/localstack: `terraform apply`, and a job with the target that it creates."""

from __future__ import annotations

import re
import uuid

import pytest

from components import Components
from harness import Workplace
from terraform_plan import Terraform

# The provider waits about 80 seconds for a lifecycle rule and a queue that it applies.
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("terraform")]


def test_terraform_target_in_localstack_runs_jobs(
    terraform: Terraform, workplace: Workplace, components: Components
) -> None:
    name = f"applied-{uuid.uuid4().hex[:8]}"
    try:
        applied = terraform.apply("examples/localstack", {"name": name, "endpoint": components.aws_endpoint})
        run_job(applied["target"], workplace, components)
    finally:
        components.remove(name)


def run_job(target: dict[str, str], workplace: Workplace, components: Components) -> None:
    workplace.environment.update(
        GRISTMILL_QUEUE=target["queue"],
        GRISTMILL_STORE=target["store"],
        **{**components.environment_of_aws, "AWS_REGION": target["region"], "AWS_ENDPOINT_URL": target["endpoint"]},
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
        role.stop()
