"""The components that people and tests run jobs against: what is in `localstack/`, and what `scripts/up` starts."""

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError
from ruamel.yaml import YAML

from components import Components
from harness import python_with

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "localstack"
COMPOSE = FOLDER / "compose.yaml"
PART_BYTES = 5 << 20
PARTS = 10
ABORTED_UPLOADS = 10


def compose_services() -> dict:
    return YAML(typ="safe").load(COMPOSE)["services"]


def test_the_compose_file_follows_the_compose_specification():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_containers_are_pinned_published_on_this_machine_alone_and_checked():
    for name, service in compose_services().items():
        image, tag = service["image"].rsplit(":")
        assert tag[0].isdigit() and tag.count(".") == 2, f"{name}: {image} is not pinned"
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        assert service["healthcheck"]["test"], name
        for mount in service["volumes"]:
            assert (FOLDER / mount.split(":")[0]).is_file(), f"{name}: {mount}"


def test_the_targets_are_what_the_containers_publish():
    named = set(re.findall(r"127\.0\.0\.1:\d+", (FOLDER / "gristmill.toml").read_text()))
    published = {port.rpartition(":")[0] for service in compose_services().values() for port in service["ports"]}
    assert named == published


@pytest.mark.timeout(600)
def test_localstack_loses_nothing_to_late_deletes():
    """Half the messages are deleted by receipts that have lapsed, while others receive; all the rest must arrive."""
    python = python_with(FOLDER / "localstack" / "requirements.txt")
    command = [python, ROOT / "tests" / "late_deletes.py", FOLDER / "localstack"]
    raced = subprocess.run(command, capture_output=True, text=True)
    assert raced.returncode == 0, raced.stdout + raced.stderr


class Upload:
    """An object that is about to be completed."""

    def __init__(self, s3, key: str):
        self.s3, self.names = s3, {"Bucket": "half-an-upload", "Key": key}
        self.names["UploadId"] = s3.create_multipart_upload(**self.names)["UploadId"]
        self.parts = [{"PartNumber": number, "ETag": self.copy_part(number)} for number in range(1, PARTS + 1)]

    def copy_part(self, number: int) -> str:
        copied = self.s3.upload_part_copy(**self.names, PartNumber=number, CopySource="half-an-upload/part")
        return copied["CopyPartResult"]["ETag"]

    def complete(self):
        self.s3.complete_multipart_upload(**self.names, MultipartUpload={"Parts": self.parts})

    def complete_if_there(self):
        with contextlib.suppress(ClientError):
            self.complete()

    def abort_if_there(self):
        with contextlib.suppress(ClientError):
            self.s3.abort_multipart_upload(**self.names)


def bytes_of(s3, key: str) -> int:
    """What a reader gets; the size that S3 tells is what should be there."""
    return len(s3.get_object(Bucket="half-an-upload", Key=key)["Body"].read())


def test_localstack_never_shows_half_of_an_upload(components: Components):
    """Uploads are aborted while they are being completed: what stands there is what stood before, or all of it."""
    s3 = components.client("s3")
    s3.create_bucket(Bucket="half-an-upload")
    s3.put_object(Bucket="half-an-upload", Key="part", Body=b"x" * PART_BYTES)
    undisturbed = Upload(s3, "undisturbed")
    began = time.monotonic()
    undisturbed.complete()
    took = time.monotonic() - began
    whole = PARTS * PART_BYTES
    assert bytes_of(s3, "undisturbed") == whole
    for number in range(ABORTED_UPLOADS):
        s3.put_object(Bucket="half-an-upload", Key="object", Body=b"before")
        upload = Upload(s3, "object")
        completing = threading.Thread(target=upload.complete_if_there)
        completing.start()
        time.sleep(took * number / ABORTED_UPLOADS)
        upload.abort_if_there()
        completing.join()
        assert bytes_of(s3, "object") in (len(b"before"), whole)


def test_both_brokers_start_with_the_queues_of_a_target_and_a_redrive_policy(components: Components):
    attributes = {}
    sqs = components.client("sqs")
    for name in ("tasks", "results", "dead-letters"):
        url = sqs.get_queue_url(QueueName=f"gristmill-{name}")["QueueUrl"]
        attributes[name] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    for name in ("tasks", "results"):
        redrive = json.loads(attributes[name]["RedrivePolicy"])
        assert redrive["deadLetterTargetArn"] == attributes["dead-letters"]["QueueArn"]
    assert components.client("s3").head_bucket(Bucket="gristmill")

    queues = {queue["name"]: queue for queue in components.manage_rabbitmq("queues/%2f")}
    for name in ("tasks", "results", "dead-letters"):
        queue = queues[f"gristmill-{name}"]
        assert (queue["type"], queue["durable"]) == ("quorum", True)
    for name in ("tasks", "results"):
        assert queues[f"gristmill-{name}"]["arguments"]["x-dead-letter-routing-key"] == "gristmill-dead-letters"


def test_creating_what_is_there_already_changes_nothing(components: Components):
    script = FOLDER / "localstack/queues_and_bucket.py"
    environment = {**components.environment, "AWS_ENDPOINT_URL": components.aws_endpoint}
    subprocess.run([sys.executable, script], env=environment, check=True, timeout=60)


def test_moto_answers_as_sqs(components: Components):
    sqs = boto3.client("sqs", endpoint_url=components.moto_endpoint, region_name="us-east-1")
    assert sqs.list_queues()["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_everything_that_was_started_listens_on_loopback_alone(components: Components):
    """A listener on every address shows as 00000000, or as 32 zeros, in the tables of the kernel."""
    ports = {f"{port:04X}" for port in components.ports()}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, port = local.split(":")
            if state == "0A" and port in ports:
                assert set(address) != {"0"}, f"port {int(port, 16)} is open to others"
                ports.discard(port)
    assert not ports, f"nothing listens on {[int(port, 16) for port in ports]}"


def test_rabbitmq_is_what_debian_ships_or_newer(components: Components):
    version = components.manage_rabbitmq("overview")["rabbitmq_version"]
    assert tuple(map(int, version.split(".")[:2])) >= (3, 10)
    with urllib.request.urlopen(f"{components.aws_endpoint}/_localstack/health", timeout=10) as answer:
        assert json.load(answer)["services"]["sqs"] in ("running", "available")
