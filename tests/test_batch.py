"""infra/batch: what it asks of AWS is what AWS knows, and an array of workers comes of it."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import subprocess
import urllib.request

import boto3
import botocore.session
import pytest
from botocore.validate import ParamValidator

from components import ROOT
from harness import python_with

FOLDER = ROOT / "infra/batch"
README = (FOLDER / "README.md").read_text()
# Which operation each file is the input of.
OPERATIONS = {
    "launch-template.json": ("ec2", "CreateLaunchTemplate"),
    "compute-environment.json": ("batch", "CreateComputeEnvironment"),
    "job-queue.json": ("batch", "CreateJobQueue"),
    "worker.json": ("batch", "RegisterJobDefinition"),
    "reducer.json": ("batch", "RegisterJobDefinition"),
}
# From the notice until the machine goes, and how late a worker may see it.
NOTICE_SECONDS, LOOK_SECONDS = 120, 5
VARIABLE = re.compile(r"\$\{(\w+)\}")


def parameters(name):
    return json.loads((FOLDER / name).read_text())


def complaints(operation, given):
    """What the service model of botocore has against the parameters, values of enumerations included."""
    service, operation = operation
    shape = botocore.session.get_session().get_service_model(service).operation_model(operation).input_shape
    report = ParamValidator().validate(given, shape)
    return [report.generate_report()] * report.has_errors() or unknown_values(shape, given)


def unknown_values(shape, given, path="input"):
    if shape.type_name == "structure":
        parts = [(shape.members[name], value, f"{path}.{name}") for name, value in given.items()]
    elif shape.type_name == "list":
        parts = [(shape.member, value, f"{path}[{index}]") for index, value in enumerate(given)]
    else:
        allowed = getattr(shape, "enum", None)
        return [f"{path}: {given!r} is none of {allowed}"] if allowed and given not in allowed else []
    return [complaint for part in parts for complaint in unknown_values(*part)]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_file_is_an_input_that_the_service_model_knows(name):
    assert complaints(OPERATIONS[name], parameters(name)) == []


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("worker.json", ["containerProperties", "readOnly"], True),
        ("worker.json", ["retryStrategy", "attempts"], "ten"),
        ("worker.json", ["type"], "containers"),
        ("compute-environment.json", ["computeResources", "allocationStrategy"], "CHEAPEST"),
        ("launch-template.json", ["LaunchTemplateData", "MetadataOptions", "HttpTokens"], "always"),
    ],
)
def test_a_wrong_input_is_noticed(name, path, value):
    given = parameters(name)
    place = given
    for field in path[:-1]:
        place = place[field]
    place[path[-1]] = value
    assert complaints(OPERATIONS[name], given)


# ---- what the files say together -----------------------------------------------------------------------------------


def value_after(command, name):
    return int(command[command.index(name) + 1])


def test_a_reclaimed_worker_ends_in_time_and_is_started_again():
    worker = parameters("worker.json")
    command = worker["containerProperties"]["command"]
    grace = value_after(command, "--grace")
    assert "--spot-notice" in command and grace + LOOK_SECONDS < NOTICE_SECONDS
    stop = re.search(r"ECS_CONTAINER_STOP_TIMEOUT=(\d+)s", (FOLDER / "user-data.txt").read_text())
    assert grace < int(stop[1])
    rules = worker["retryStrategy"]["evaluateOnExit"]
    assert {"onExitCode": str(value_after(command, "--spot-exit-status")), "action": "RETRY"} in rules
    for definition in (worker, parameters("reducer.json")):
        rules = definition["retryStrategy"]["evaluateOnExit"]
        assert {"onStatusReason": "Host EC2*", "action": "RETRY"} in rules
        # The first that fits counts: a job that fails for another reason is not repeated.
        assert rules[-1] == {"onReason": "*", "action": "EXIT"} and definition["retryStrategy"]["attempts"] == 10


@pytest.mark.parametrize("role", ["worker", "reducer"])
def test_a_role_is_closed_and_its_command_is_known(role, workplace):
    container = parameters(f"{role}.json")["containerProperties"]
    assert (container["user"], container["privileged"], container["readonlyRootFilesystem"]) == ("10001", False, True)
    writable = {mount["containerPath"] for mount in container["mountPoints"]}
    assert writable | {entry["containerPath"] for entry in container["linuxParameters"]["tmpfs"]} == {
        "/tmp",
        "/var/cache/gristmill",
    }
    assert {mount["sourceVolume"] for mount in container["mountPoints"]} == {
        volume["name"] for volume in container["volumes"]
    }
    assert container["command"][0] == role and "--idle-exit" in container["command"]
    assert workplace.command(*container["command"], "--help").exit_status == 0
    assert workplace.command(*container["command"], "--no-such", "--help").exit_status != 0
    # Several of them share the network of a machine.
    assert {"name": "GRISTMILL_LISTEN", "value": "127.0.0.1:0"} in container["environment"]
    known = (ROOT / "services/cli/src/settings.rs").read_text()
    names = {entry["name"] for entry in container["environment"]} - {"AWS_REGION"}
    assert all(f"`{name}`" in known for name in names)


def test_as_many_processes_as_processors():
    container = parameters("worker.json")["containerProperties"]
    [processors] = [entry["value"] for entry in container["resourceRequirements"] if entry["type"] == "VCPU"]
    assert value_after(container["command"], "--process-count") == int(processors)


# ---- the script, and the commands of the README -------------------------------------------------------------------


@pytest.fixture(scope="module")
def cli():
    """The folder of the AWS CLI."""
    return os.path.dirname(python_with(ROOT / "tests/requirements-aws.txt"))


@pytest.fixture
def account(components, cli, tmp_path):
    """An account of moto, what `apply` wants to know of it, and clients."""
    region = "eu-north-1"
    credentials = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    request = urllib.request.Request(
        f"{components.moto_endpoint}/moto-api/config",
        # Jobs end at once, and need no Docker.
        data=json.dumps({"batch": {"use_docker": False}}).encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=20).close()

    def client(service):
        return boto3.client(
            service,
            endpoint_url=components.moto_endpoint,
            region_name=region,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    iam, ec2 = client("iam"), client("ec2")
    name = f"gristmill-{os.getpid()}"
    profile = iam.create_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Arn"]
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    service_role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    # AWS makes this role by itself; moto wants to be told.
    (tmp_path / "aws").write_text(
        "#!/bin/sh\n"
        f'[ "$2" != create-compute-environment ] || set -- "$@" --service-role {service_role}\n'
        f'exec {cli}/aws "$@"\n'
    )
    (tmp_path / "aws").chmod(0o755)
    subnets = [subnet["SubnetId"] for subnet in ec2.describe_subnets()["Subnets"]]
    [group] = ec2.describe_security_groups(GroupNames=["default"])["SecurityGroups"]
    role = "arn:aws:iam::123456789012:role/"
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "AWS_ENDPOINT_URL": components.moto_endpoint,
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_EC2_METADATA_DISABLED": "true",
        **credentials,
        "NAME": name,
        "WORKER_IMAGE": "123456789012.dkr.ecr.us-east-1.amazonaws.com/gristmill-worker:0.1.0",
        "REDUCER_IMAGE": "123456789012.dkr.ecr.us-east-1.amazonaws.com/gristmill:0.1.0",
        "GRISTMILL_QUEUE": "sqs://team-a",
        "GRISTMILL_STORE": "s3://team-a-gristmill/jobs",
        "WORKER_ROLE_ARN": f"{role}worker",
        "REDUCER_ROLE_ARN": f"{role}reducer",
        "EXECUTION_ROLE_ARN": f"{role}execution",
        "INSTANCE_PROFILE_ARN": profile,
        "SUBNET_A": subnets[0],
        "SUBNET_B": subnets[1],
        "SECURITY_GROUP": group["GroupId"],
    }
    yield environment, client
    iam.delete_instance_profile(InstanceProfileName=name)
    iam.delete_role(RoleName=name)


def apply(environment):
    return subprocess.run([FOLDER / "apply"], env=environment, capture_output=True, text=True, timeout=300)


def submissions(name):
    """The commands of the README that submit jobs, for what is called by another name here."""
    lines = [line for line in README.splitlines() if line.startswith("aws batch submit-job ")]
    return [shlex.split(re.sub(r"\bgristmill\b", name, line)) for line in lines]


@pytest.mark.timeout(900)
def test_an_array_of_workers_comes_of_it(account):
    environment, client = account
    name, batch, ec2 = environment["NAME"], client("batch"), client("ec2")

    missing = apply({key: value for key, value in environment.items() if key != "SUBNET_B"})
    assert missing.returncode != 0 and "the variable SUBNET_B is not set" in missing.stderr
    hostile = apply({**environment, "GRISTMILL_STORE": 's3://x"}, {"name": "y'})
    assert hostile.returncode != 0 and "the variable GRISTMILL_STORE has a quotation mark" in hostile.stderr
    named = [{"Name": "launch-template-name", "Values": [name]}]
    assert not ec2.describe_launch_templates(Filters=named)["LaunchTemplates"], "nothing is made too early"

    for revision in (1, 2):
        applied = apply(environment)
        assert applied.returncode == 0, applied.stderr
        assert [line.rpartition("/")[2] for line in applied.stdout.split()] == [
            f"{name}-worker:{revision}",
            f"{name}-reducer:{revision}",
        ]
    [template] = ec2.describe_launch_templates(Filters=named)["LaunchTemplates"]
    assert template["LatestVersionNumber"] == 2
    [version] = ec2.describe_launch_template_versions(LaunchTemplateName=name, Versions=["2"])["LaunchTemplateVersions"]
    assert base64.b64decode(version["LaunchTemplateData"]["UserData"]) == (FOLDER / "user-data.txt").read_bytes()
    assert version["LaunchTemplateData"]["MetadataOptions"]["HttpTokens"] == "required"
    [made] = batch.describe_compute_environments(computeEnvironments=[name])["computeEnvironments"]
    assert made["status"] == "VALID" and made["computeResources"]["type"] == "SPOT"
    assert made["computeResources"]["subnets"] == [environment["SUBNET_A"], environment["SUBNET_B"]]

    told = []
    for command in submissions(name):
        submitted = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
        assert submitted.returncode == 0, submitted.stderr
        told.append(json.loads(submitted.stdout)["jobId"])
    reducer, workers = batch.describe_jobs(jobs=told)["jobs"]
    children = batch.list_jobs(arrayJobId=workers["jobId"], jobStatus="SUCCEEDED")["jobSummaryList"]
    assert len(children) == 20 and sorted(child["jobId"] for child in children)[0] == f"{workers['jobId']}:0"
    assert "arrayProperties" not in reducer or not reducer["arrayProperties"].get("size")
    [definition] = batch.describe_job_definitions(jobDefinitions=[workers["jobDefinition"]])["jobDefinitions"]
    assert definition["revision"] == 2 and definition["retryStrategy"]["attempts"] == 10
    container = definition["containerProperties"]
    assert container["image"] == environment["WORKER_IMAGE"] and not VARIABLE.search(json.dumps(definition))
    assert {"name": "GRISTMILL_QUEUE", "value": "sqs://team-a"} in container["environment"]


def test_the_script_names_every_variable_that_the_files_want():
    script = (FOLDER / "apply").read_text()
    named = set(re.findall(r"\b[A-Z][A-Z_]{3,}\b", script[: script.index("set -euo")]))
    wanted = {name for file in OPERATIONS for name in VARIABLE.findall((FOLDER / file).read_text())}
    assert wanted - named == {"USER_DATA"}
