"""Policies of the roles: exactly the permissions that the code needs, shown by a job that runs with them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions
import botocore.session
import pytest
from role_needs import DANGEROUS, NOT_ALLOWED, OF_EVERYBODY, QUEUES, RARE

import access
from components import Components
from harness import Workplace, wait_until
from iam_gate import ACCOUNT, REGION, Gate, is_allowed, queue_arn
from portal_client import Portal
from terraform_files import call, evaluate, policies

# Another test may be creating moto's environment at the same time. One process evaluates the policies.
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("policies")]


class Names:
    """ARNs of the table's resources in one target."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.bucket = f"{prefix}-store"
        self.data = f"{prefix}-data"
        self.key = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/one"

    def arn(self, resource: str) -> str:
        if resource in QUEUES:
            return self.queue(resource)
        elsewhere = {
            "bucket": f"arn:aws:s3:::{self.bucket}",
            "store": f"arn:aws:s3:::{self.bucket}",
            "inputs": f"arn:aws:s3:::{self.data}",
            "outputs": f"arn:aws:s3:::{self.bucket}",
            "inputs/*": f"arn:aws:s3:::{self.data}/in/*",
            "outputs/*": f"arn:aws:s3:::{self.bucket}/outputs/*",
            "own tasks": "arn:aws:ecs:*:*:task/fleet/*",
            "key": self.key,
            "key of inputs": f"{self.key}-of-inputs",
            "key of outputs": f"{self.key}-of-outputs",
        }
        return elsewhere.get(resource, f"arn:aws:s3:::{self.bucket}/team/{resource}")

    def condition(self, place: str) -> dict[str, dict[str, list[str]]]:
        """Returns the condition of permissions on a place: which names in a bucket, which tasks."""
        if place == "own tasks":
            return {"StringEquals": {"aws:ResourceTag/GristmillWorker": [self.prefix]}}
        names = {"store": "team/*", "inputs": "in/*", "outputs": "outputs/*"}
        return {"StringLike": {"s3:prefix": [names[place]]}} if place in names else {}

    def queue(self, name: str) -> str:
        return queue_arn(f"{self.prefix}-{name}")


def render(folder: Path, names: Names, **arguments: Any) -> dict[str, dict[str, Any]]:
    """Returns the policy of every role, as Terraform creates it."""
    settings = {
        "name": names.prefix,
        "bucket": names.bucket,
        "prefix": "team",
        "queue_arns": {"control": names.queue("control"), "dead_letters": names.queue("dead-letters")},
        "inputs": [f"{names.data}/in"],
        "outputs": [f"{names.bucket}/outputs"],
        "cluster_name": "fleet",
        "kms_key_arns": [names.key],
        "input_kms_key_arns": [f"{names.key}-of-inputs"],
        "output_kms_key_arns": [f"{names.key}-of-outputs"],
        **arguments,
    }
    return policies(evaluate(folder, call("access", **settings)))


def policy_of(needs: Iterable[access.Need], names: Names) -> dict[str, Any]:
    statements = [
        {"Effect": "Allow", "Action": [action], "Resource": [names.arn(place)], "Condition": names.condition(place)}
        for action, place in needs
    ]
    return {"Version": "2012-10-17", "Statement": statements}


Permission = tuple[str, str, str]  # Action, resource, condition.


def permissions(document: dict[str, Any]) -> set[Permission]:
    """Returns each permission of a policy; a condition with two values gives two."""

    def conditions(statement: dict[str, Any]) -> list[str]:
        found = [
            f"{test} {variable} {value}"
            for test, variables in statement["Condition"].items()
            for variable, values in variables.items()
            for value in values
        ]
        return found or [""]

    return {
        (action, resource, condition)
        for statement in document["Statement"]
        for action in statement["Action"]
        for resource in statement["Resource"]
        for condition in conditions(statement)
    }


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The policies of a target called `target`."""
    return render(tmp_path_factory.mktemp("policies"), Names("target"))


def test_policies_allow_exactly_the_needs_of_their_roles(rendered: dict[str, dict[str, Any]]) -> None:
    for role, needs in access.NEEDS.items():
        assert permissions(rendered[role]) == permissions(policy_of(needs, Names("target"))), role
        assert RARE[role] <= needs, role


def test_rabbitmq_target_grants_no_sqs_permissions(tmp_path: Path) -> None:
    for role, document in render(tmp_path, Names("target"), queue_arns=None).items():
        assert not [action for action, *_ in permissions(document) if action.startswith("sqs:")], role


def test_every_request_in_the_sources_is_listed_or_denied() -> None:
    requests = access.requests_of_sources()
    assert {"ReceiveMessage", "SendMessageBatch"} <= requests["sqs"] and "UploadPartCopy" in requests["s3"]
    allowed = {action for needs in access.NEEDS.values() for action, _ in needs}
    for service, names in requests.items():
        for name in names:
            action = access.ACTIONS_OF_REQUESTS.get(name, f"{service}:{name}")
            assert (action in allowed) != (name in NOT_ALLOWED), name


def test_policies_name_existing_actions() -> None:
    session = botocore.session.get_session()
    requests = {(action.partition(":")[0], request) for request, action in access.ACTIONS_OF_REQUESTS.items()}
    needed = {action for needs in access.NEEDS.values() for action, _ in needs}
    requests |= {tuple(action.split(":")) for action in needed - set(access.ACTIONS_OF_REQUESTS.values())}
    for service, request in requests:
        assert request in session.get_service_model(service).operation_names, (service, request)


JOB = """
    def run(files):
        if files[0].endswith('007.txt'):
            return ['x' * 99] * 1000
        return [open(file).read() for file in files]
"""
FILES = 24


@pytest.fixture
def names(components: Components) -> Names:
    """Creates a target like the modules: two buckets, two queues."""
    names = Names(f"access-{uuid.uuid4().hex[:12]}")
    s3, sqs = components.client("s3"), components.client("sqs")
    for bucket in (names.bucket, names.data):
        s3.create_bucket(Bucket=bucket)
    for number in range(FILES):
        s3.put_object(Bucket=names.data, Key=f"in/{number:03}.txt", Body=f"{number:03}".encode())
    for queue in ("control", "dead-letters"):
        sqs.create_queue(QueueName=f"{names.prefix}-{queue}", Attributes={"MessageRetentionPeriod": "1209600"})
    return names


@pytest.fixture
def gate(names: Names, components: Components, tmp_path: Path) -> Iterator[Gate]:
    (tmp_path / "terraform").mkdir()
    gate = Gate(components.aws_endpoint, render(tmp_path / "terraform", names))
    yield gate
    gate.close()


def as_role(role: str, names: Names, gate: Gate) -> dict[str, str]:
    """Returns the environment of a container of that role."""
    return {
        "AWS_ACCESS_KEY_ID": role,
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL": gate.url,
        "AWS_EC2_METADATA_DISABLED": "true",
        "GRISTMILL_QUEUE": f"sqs://{names.prefix}",
        "GRISTMILL_STORE": f"s3://{names.bucket}/team",
    }


def run_job(workplace: Workplace, names: Names, gate: Gate, components: Components) -> bytes:
    """Runs a job with all user commands and returns its output."""
    started = [workplace.role(role, **as_role(role, names, gate)) for role in ("worker", "reducer")]
    # As Python keeps a table that was in memory.
    workplace.write({"home/functions/inputs/one.parquet": "table"})
    job = workplace.job(
        JOB,
        inputs=[
            {"name": "data", "type": "file", "path": f"s3://{names.data}/in/"},
            {"name": "memory", "type": "file", "path": str(workplace.home / "functions/inputs/one.parquet")},
        ],
        output=f"s3://{names.bucket}/outputs/one",
        node_count=1,
    )
    mine = as_role("enqueuer", names, gate)
    enqueued = workplace.command("enqueue", job.file, **mine)
    assert enqueued.exit_status == 0, str(enqueued)
    job_id = enqueued.stdout.strip()

    def result() -> Any:
        shown = workplace.command("status", job_id, "--json", **mine)
        assert shown.exit_status == 0, str(shown)
        return json.loads(shown.stdout)["result"]

    ended = wait_until(result, f"the end of {job_id}")
    assert ended["state"] == "Completed", ended
    for command in (["jobs"], ["logs", job_id], ["cancel", job_id], ["retry", job_id]):
        done = workplace.command(*command, **mine)
        assert done.exit_status == 0 or command[0] == "cancel", str(done)
    portal = Portal(workplace, "--read-only", **as_role("portal", names, gate))
    for page in ["", "/series", "/map", "/mini-batches", "/mini-batches/7", "/timeline", "/nodes", "/logs", "/output"]:
        assert portal.get(f"/jobs/{job_id}{page}")
    assert portal.get(f"/jobs/{job_id}/output")["available"]
    assert portal.get("/jobs")["jobs"][0]["job_id"] == job_id
    shown = portal.get("/target")
    assert shown["queues"] and not [queue for queue in shown["queues"] if queue["problem"]], shown
    assert not shown["dead_letters_problem"], shown
    wait_until(lambda: not notes_of_queues(names, components), "the end of the queues of the job")
    assert queues_of(names, components) == ["control", "dead-letters"]
    for running in started:
        running.stop()
    return ended["output"].encode()


def queues_of(names: Names, components: Components) -> list[str]:
    """Returns the ends of the names of the target's queues, those of its jobs too."""
    urls = components.client("sqs").list_queues(QueueNamePrefix=f"{names.prefix}-").get("QueueUrls", [])
    return sorted(url.rpartition("/")[2].removeprefix(f"{names.prefix}-") for url in urls)


def notes_of_queues(names: Names, components: Components) -> list[Any]:
    """Returns what reducers note of queues of jobs, until they have deleted them."""
    return components.client("s3").list_objects_v2(Bucket=names.bucket, Prefix="team/queues/").get("Contents", [])


def test_job_runs_with_exactly_these_policies(
    workplace: Workplace, names: Names, gate: Gate, components: Components
) -> None:
    output = run_job(workplace, names, gate, components).decode()
    key = output.removeprefix(f"s3://{names.bucket}/")
    rows = components.client("s3").get_object(Bucket=names.bucket, Key=key)["Body"].read().decode().splitlines()
    assert len(rows) == FILES - 1 + 1000 + 1 and rows[0] == "000" and rows[-1] == "table"
    for command in (["doctor"], ["dead-letters"], ["clean", "--all"]):
        done = workplace.command(*command, **as_role("operator", names, gate))
        assert done.exit_status == 0, str(done)

    # `enqueue` looks whether the bucket of the output exists, and needs neither an answer nor a right to write there.
    bucket = f"arn:aws:s3:::{names.bucket}"
    probes = {("s3:PutObject", f"{bucket}/outputs/one/.gristmill-probe", None), ("s3:ListBucket", bucket, None)}
    assert gate.refused["enqueuer"] <= probes, gate.refused
    assert not any(refused for role, refused in gate.refused.items() if role != "enqueuer"), gate.refused

    def was_used(role: str, need: access.Need) -> bool:
        return any(is_allowed(policy_of([need], names), *asked) for asked in gate.asked[role])

    for role, needs in access.NEEDS.items():
        rare = {need for need in needs if need[0].startswith("kms:")} | RARE[role]
        assert {need for need in needs - rare if not was_used(role, need)} == set(), f"{role}: no request needs it"


def test_no_role_has_dangerous_permissions(rendered: dict[str, dict[str, Any]]) -> None:
    names = Names("target")
    for role, policy in rendered.items():
        for line in f"{DANGEROUS[role].strip()}\n{OF_EVERYBODY.strip()}".splitlines():
            action, *places = line.split()
            arn = names.queue if action.startswith("sqs:") else names.arn
            assert not [place for place in places if is_allowed(policy, action, arn(place))], (role, action)


def test_permissions_end_with_the_prefix_of_the_target(rendered: dict[str, dict[str, Any]]) -> None:
    """And include targets whose prefix continues this one, which the module `queue` therefore rejects."""
    creates = {"sqs:CreateQueue", "sqs:DeleteQueue", "sqs:TagQueue"}
    of_jobs = creates | {"sqs:ReceiveMessage", "sqs:SendMessage"}
    for role, policy in rendered.items():
        actions = {action for action, _ in access.NEEDS[role] if action.startswith("sqs:")}
        for other in ("other", "targets", "target_a"):
            ends = ("control", "dead-letters", "one-tasks", "one-results", "doctor-one-tasks")
            arns = [queue_arn(f"{other}-{end}") for end in ends]
            assert not [(action, arn) for action in actions for arn in arns if is_allowed(policy, action, arn)], role
        arns = [queue_arn(f"target-a-one-{end}") for end in ("tasks", "results")]
        reached = {action for action in of_jobs for arn in arns if is_allowed(policy, action, arn)}
        expected = {"reducer": of_jobs, "worker": of_jobs - creates}
        assert reached == expected.get(role, {"sqs:SendMessage"} if role == "operator" else set()), role


def test_roles_list_only_what_they_read(rendered: dict[str, dict[str, Any]]) -> None:
    names = Names("target")
    read = {
        "worker": {"team/jobs/", "in/one/"},
        "reducer": {"team/jobs/", "outputs/"},
        "enqueuer": {"team/jobs/", "in/one/", "outputs/"},
        "portal": {"team/jobs/", "outputs/"},
        "operator": {"team/jobs/"},
    }
    buckets = {"in/one/": "inputs", "other/": "inputs"}
    for role, policy in rendered.items():
        for prefix in ("team/jobs/", "team-b/jobs/", "team", "in/one/", "other/", "outputs/", "", None):
            arn = names.arn(buckets.get(prefix or "", "bucket"))
            assert is_allowed(policy, "s3:ListBucket", arn, prefix) == (prefix in read[role]), (role, prefix)


def test_workers_protect_tasks_of_their_own_target(rendered: dict[str, dict[str, Any]]) -> None:
    """ECS knows the tags of tasks, which they get from their service; no role may change tags of tasks."""
    task = "arn:aws:ecs:eu-central-1:123456789012:task/fleet/0123456789abcdef"
    own = {"aws:ResourceTag/GristmillWorker": "target"}
    other = {"aws:ResourceTag/GristmillWorker": "other"}
    for tags, expected in ((own, True), (other, False), ({}, False)):
        assert is_allowed(rendered["worker"], "ecs:UpdateTaskProtection", task, context=tags) == expected
    elsewhere = task.replace("fleet", "other")
    assert not is_allowed(rendered["worker"], "ecs:UpdateTaskProtection", elsewhere, context=own)
    tagging = {action for policy in rendered.values() for action, *_ in permissions(policy) if "Tag" in action}
    assert tagging == {"sqs:TagQueue"}, "of queues that a role creates"


def test_gate_denies_requests_beyond_the_policy(names: Names, gate: Gate) -> None:
    credentials = {"aws_access_key_id": "worker", "aws_secret_access_key": "secret", "region_name": REGION}
    sqs = boto3.client("sqs", endpoint_url=gate.url, **credentials)
    s3 = boto3.client("s3", endpoint_url=gate.url, **credentials)
    s3.put_object(Bucket=names.bucket, Key="team/jobs/one/parts/0-1", Body=b"x")
    gate.policies["creator"] = {
        "Statement": [{"Effect": "Allow", "Action": "sqs:CreateQueue", "Resource": names.queue("one-tasks")}]
    }
    creator = boto3.client("sqs", endpoint_url=gate.url, **{**credentials, "aws_access_key_id": "creator"})
    for denied in (
        lambda: s3.put_object(Bucket=names.bucket, Key="team/jobs/one/ledger/0", Body=b"x"),
        lambda: s3.delete_object(Bucket=names.bucket, Key="team/jobs/one/parts/0-1"),
        # S3 does not say whether an object exists that the role may not list.
        lambda: s3.list_objects_v2(Bucket=names.bucket, Prefix="team-b/jobs/"),
        lambda: s3.list_objects_v2(Bucket=names.bucket),
        lambda: sqs.receive_message(QueueUrl=f"{gate.url}/{ACCOUNT}/{names.prefix}-control"),
        lambda: sqs.create_queue(QueueName=f"{names.prefix}-one-tasks"),
        # A role that may create a queue may not tag it, unless its policy says so.
        lambda: creator.create_queue(QueueName=f"{names.prefix}-one-tasks", tags={"CostCenter": "7"}),
    ):
        with pytest.raises(botocore.exceptions.ClientError) as error:
            denied()
        assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    with pytest.raises(botocore.exceptions.ClientError) as error:
        s3.get_object(Bucket=names.bucket, Key="team/jobs/one/result.json")
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404, "it may list the name, so it learns this"
