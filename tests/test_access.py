"""The policies of the roles: what the code needs, no less and no more; shown by running a job with them."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions
import botocore.session
import pytest

import access
from components import Components
from harness import Workplace, python_with, wait_until
from iam_gate import ACCOUNT, REGION, Gate, is_allowed, queue_arn
from terraform_files import INFRA, MODULES, ROOTS, call, evaluate, policy, read

# Another test may be making the environment of moto just now.
pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parent.parent
ROLES = sorted(access.NEEDS)


class Names:
    """What the resources of the table are called in one target."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.bucket = f"{prefix}-store"
        self.data = f"{prefix}-data"
        self.key = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/one"

    def arn(self, resource: str) -> str:
        if resource in access.QUEUES:
            return queue_arn(f"{self.prefix}-{resource}")
        elsewhere = {
            "bucket": f"arn:aws:s3:::{self.bucket}",
            "inputs": f"arn:aws:s3:::{self.data}",
            "inputs/*": f"arn:aws:s3:::{self.data}/in/*",
            "outputs/*": f"arn:aws:s3:::{self.bucket}/outputs/*",
            "tasks of the cluster": "arn:aws:ecs:*:*:task/fleet/*",
            "key": self.key,
        }
        return elsewhere.get(resource, f"arn:aws:s3:::{self.bucket}/team/{resource}")


def render(folder: Path, names: Names, **arguments: Any) -> dict[str, dict[str, Any]]:
    """The policy of every role, as Terraform makes it."""
    queues = {"tasks": "tasks", "results": "results", "dead_letters": "dead-letters"}
    settings = {
        "name": names.prefix,
        "bucket": names.bucket,
        "prefix": "team",
        "queue_arns": {key: names.arn(queue) for key, queue in queues.items()},
        "inputs": [f"{names.data}/in"],
        "outputs": [f"{names.bucket}/outputs"],
        "cluster_name": "fleet",
        "kms_key_arns": [names.key],
        **arguments,
    }
    evaluated = evaluate(folder, call("access", **settings))
    documents = evaluated["aws_iam_policy_document"]
    return {document["__tfmeta"]["path"].rpartition(".")[2]: policy(document) for document in documents}


def pairs(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {
        (action, resource)
        for statement in document["Statement"]
        for action in statement["Action"]
        for resource in statement["Resource"]
    }


@pytest.mark.parametrize("role", ROLES)
def test_a_policy_allows_what_its_role_needs_and_nothing_else(role: str, tmp_path: Path) -> None:
    names = Names("target")
    needed = {(need.action, names.arn(place)) for need in access.NEEDS[role] for place in need.resources}
    assert pairs(render(tmp_path, names)[role]) == needed


def test_with_rabbitmq_nobody_may_do_anything_at_sqs(tmp_path: Path) -> None:
    for role, document in render(tmp_path, Names("target"), queue_arns=None).items():
        assert not [action for action, _ in pairs(document) if action.startswith("sqs:")], role


def test_every_need_stands_in_the_sources() -> None:
    for role, needs in access.NEEDS.items():
        for need in needs:
            where = access.SERVICES / need.file
            files = where.rglob("*.rs") if where.is_dir() else [where]
            assert any(need.text in file.read_text() for file in files), (
                f"{role}: {need.action}: {need.file}: {need.text}"
            )


def test_every_request_of_the_sources_is_in_the_table_or_refused_to_all() -> None:
    requests = access.requests_of_sources()
    assert {"ReceiveMessage", "SendMessageBatch"} <= requests["sqs"] and "UploadPartCopy" in requests["s3"]
    allowed = {need.action for needs in access.NEEDS.values() for need in needs}
    for service, names in requests.items():
        for name in names:
            action = access.ACTIONS_OF_REQUESTS.get(name, f"{service}:{name}")
            assert (action in allowed) != (name in access.NOT_ALLOWED), name


def test_actions_are_operations_of_their_services() -> None:
    session = botocore.session.get_session()
    # Actions that are called otherwise than the requests they allow.
    of_requests = set(access.ACTIONS_OF_REQUESTS.values())
    for needs in access.NEEDS.values():
        for need in needs:
            service, _, name = need.action.partition(":")
            operations = session.get_service_model(service).operation_names
            assert name in operations or need.action in of_requests, need.action
    for request, action in access.ACTIONS_OF_REQUESTS.items():
        assert request in session.get_service_model(action.partition(":")[0]).operation_names, request


def actions_in(body: Any) -> Iterator[str]:
    """Wherever `actions` stands, in blocks that are made by `dynamic` too."""
    for key, value in body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else []:
        if key == "actions":
            yield from value
        else:
            yield from actions_in(value)


def test_no_policy_names_an_action_that_there_is_not() -> None:
    session = botocore.session.get_session()
    of_requests = set(access.ACTIONS_OF_REQUESTS.values())
    named = {
        action
        for path in [*MODULES, *ROOTS]
        for (kind, type_name, _), body in read(path).resources.items()
        if (kind, type_name) == ("data", "aws_iam_policy_document")
        for action in actions_in(body)
    }
    assert {"sqs:*", "kms:ReEncrypt*", "secretsmanager:GetSecretValue", "s3:ListBucket"} <= named
    for action in named - of_requests:
        service, _, name = action.partition(":")
        assert fnmatch.filter(session.get_service_model(service).operation_names, name), action


def test_the_page_says_who_may_do_what() -> None:
    page = (INFRA / "README.md").read_text()
    rows = re.findall(r"^\| (worker|reducer|enqueuer|operator) \| (.*?) \| (.*?) \| .+ \|$", page, re.MULTILINE)
    told = {
        (role, action, place)
        for role, actions, places in rows
        for action in re.findall(r"`([a-z0-9]+:\w+)`", actions)
        for place in re.findall(r"`([^`]+)`", places)
    }
    table = {
        (role, need.action, place) for role, needs in access.NEEDS.items() for need in needs for place in need.resources
    }
    assert told == table


def test_the_gate_reads_policies_as_moto_does(tmp_path: Path) -> None:
    """Every action on every place, by two implementations."""
    names = Names("target")
    actions = sorted({need.action for needs in access.NEEDS.values() for need in needs})
    places = sorted({place for needs in access.NEEDS.values() for need in needs for place in need.resources})
    arns = [names.arn(place).replace("*", "some") for place in places] + ["arn:aws:s3:::other/key"]
    questions = [
        (policy, action, arn) for policy in render(tmp_path, names).values() for action in actions for arn in arns
    ]
    answered = ask_moto(questions)
    assert answered == [is_allowed(*question) for question in questions]
    assert 50 < sum(answered) < len(answered) / 2


def ask_moto(questions: list[tuple[dict[str, Any], str, str]]) -> list[bool]:
    """moto, which has an environment of its own, has read many policies."""
    script = """
import json, sys
from moto.iam.access_control import IAMPolicy, PermissionResult
ask = lambda policy, action, arn: IAMPolicy(json.dumps(policy)).is_action_permitted(action, arn)
print(json.dumps([ask(*question) is PermissionResult.PERMITTED for question in json.load(sys.stdin)]))
"""
    command = [python_with(ROOT / "tests/requirements-moto.txt"), "-c", script]
    said = subprocess.run(command, input=json.dumps(questions), capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


JOB = """
    def run(files):
        if '007' in files[0]:
            return ['x' * 99] * 1000
        return [open(file).read() for file in files]
"""
FILES = 24


@pytest.fixture
def names(components: Components) -> Names:
    """A target as the modules make it: two buckets, three queues."""
    names = Names(f"access-{uuid.uuid4().hex[:12]}")
    s3, sqs = components.client("s3"), components.client("sqs")
    for bucket in (names.bucket, names.data):
        s3.create_bucket(Bucket=bucket)
    for number in range(FILES):
        s3.put_object(Bucket=names.data, Key=f"in/{number:03}.txt", Body=f"{number:03}".encode())
    for queue in access.QUEUES:
        sqs.create_queue(QueueName=f"{names.prefix}-{queue}", Attributes={"MessageRetentionPeriod": "1209600"})
    return names


@pytest.fixture
def gate(names: Names, components: Components, tmp_path: Path) -> Iterator[Gate]:
    (tmp_path / "terraform").mkdir()
    gate = Gate(components.aws_endpoint, render(tmp_path / "terraform", names))
    yield gate
    gate.close()


def as_role(role: str, names: Names, gate: Gate) -> dict[str, str]:
    """The environment of a container of that role."""
    return {
        "AWS_ACCESS_KEY_ID": role,
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL": gate.endpoint,
        "AWS_EC2_METADATA_DISABLED": "true",
        "GRISTMILL_QUEUE": f"sqs://{names.prefix}",
        "GRISTMILL_STORE": f"s3://{names.bucket}/team",
    }


def run_job(workplace: Workplace, names: Names, gate: Gate) -> bytes:
    """A job through all commands that people use; returns its output."""
    started = []
    for role in ("worker", "reducer"):
        running = workplace.start(role, **as_role(role, names, gate))
        line = running.process.stdout.readline().decode()
        assert "ready" in line, f"{line}{running.wait()}"
        started.append(running)
    # Seats too, and all that people do with a job.
    job = workplace.job(
        JOB,
        inputs=[{"name": "data", "type": "file", "path": f"s3://{names.data}/in/"}],
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
    for running in started:
        running.process.terminate()
        assert running.wait().exit_status == 0
    return ended["output"].encode()


def test_a_job_runs_with_exactly_these_policies_and_needs_them(
    workplace: Workplace, names: Names, gate: Gate, components: Components
) -> None:
    output = run_job(workplace, names, gate).decode()
    key = output.removeprefix(f"s3://{names.bucket}/")
    rows = components.client("s3").get_object(Bucket=names.bucket, Key=key)["Body"].read().decode().splitlines()
    assert len(rows) == FILES - 1 + 1000 and rows[0] == "000"
    doctor = workplace.command("doctor", **as_role("operator", names, gate))
    assert doctor.exit_status == 0, str(doctor)
    letters = workplace.command("dead-letters", **as_role("operator", names, gate))
    assert letters.exit_status == 0, str(letters)

    assert not any(gate.refused.values()), gate.refused
    for role, needs in access.NEEDS.items():
        for need in needs:
            patterns = [names.arn(place) for place in need.resources]
            one = {
                "Version": "2012-10-17",
                "Statement": [{"Effect": "Allow", "Action": [need.action], "Resource": patterns}],
            }
            if not need.only:
                assert any(is_allowed(one, *asked) for asked in gate.asked[role]), f"{role}: {need}: nobody asked"


REQUESTS = {
    "sqs:ReceiveMessage": lambda sqs, url: sqs.receive_message(QueueUrl=url, WaitTimeSeconds=0),
    "sqs:SendMessage": lambda sqs, url: sqs.send_message(QueueUrl=url, MessageBody="x"),
    "sqs:PurgeQueue": lambda sqs, url: sqs.purge_queue(QueueUrl=url),
    "sqs:DeleteQueue": lambda sqs, url: sqs.delete_queue(QueueUrl=url),
}
# Whoever loses these has lost a job, or may pretend an outcome.
OBJECTS = [
    "jobs/one/spec.json",
    "jobs/one/plan/0000000000",
    "jobs/one/ledger/0000000000",
    "jobs/one/parts/0-1",
    "jobs/one/logs/a.txt",
    "jobs/one/nodes/0/0000000001",
    "jobs/one/progress.json",
    "jobs/one/result.json",
    "jobs/one/control/cancel",
    "open/one",
    "snapshots/00",
    "doctor/probe",
]


@pytest.mark.parametrize("role", ["worker", "reducer", "enqueuer"])
def test_what_a_role_does_not_need_is_refused(role: str, names: Names, gate: Gate) -> None:
    credentials = {"aws_access_key_id": role, "aws_secret_access_key": "secret", "region_name": REGION}
    sqs = boto3.client("sqs", endpoint_url=gate.endpoint, **credentials)
    s3 = boto3.client("s3", endpoint_url=gate.endpoint, **credentials)
    needed = [(need.action, names.arn(place)) for need in access.NEEDS[role] for place in need.resources]

    def expected(action: str, arn: str) -> bool:
        policy = {"Statement": [{"Effect": "Allow", "Action": [a], "Resource": [r]} for a, r in needed]}
        return is_allowed(policy, action, arn)

    def allowed(request: Any) -> bool:
        try:
            request()
        except botocore.exceptions.ClientError as error:
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] in (403, 404), error
            return error.response["ResponseMetadata"]["HTTPStatusCode"] == 404
        return True

    for queue in access.QUEUES:
        url = f"{gate.endpoint}/{ACCOUNT}/{names.prefix}-{queue}"
        for action, request in REQUESTS.items():
            is_needed = expected(action, queue_arn(f"{names.prefix}-{queue}"))
            assert allowed(lambda r=request, u=url: r(sqs, u)) == is_needed, (role, action, queue)
    for name in OBJECTS:
        place = {"Bucket": names.bucket, "Key": f"team/{name}"}
        arn = f"arn:aws:s3:::{names.bucket}/team/{name}"
        for action, request in {
            "s3:PutObject": lambda p=place: s3.put_object(Body=b"x", **p),
            "s3:GetObject": lambda p=place: s3.get_object(**p),
            "s3:DeleteObject": lambda p=place: s3.delete_object(**p),
        }.items():
            assert allowed(request) == expected(action, arn), (role, action, name)
