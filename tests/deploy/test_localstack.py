"""localstack/: the queues and the bucket with which LocalStack and RabbitMQ start are those of a target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid

from components import Components
from harness import ROOT, Workplace

OWN_QUEUES = ["control", "dead-letters"]


def test_rabbitmq_starts_with_the_queues_that_roles_declare(components: Components, workplace: Workplace) -> None:
    """With other arguments every declaration would fail."""
    definitions = json.loads((ROOT / "localstack/rabbitmq/definitions.json").read_text())
    assert [queue["name"] for queue in definitions["queues"]] == [f"gristmill-{name}" for name in OWN_QUEUES]
    prefix = f"starts-{uuid.uuid4().hex[:8]}"
    try:
        components.create_target("rabbitmq", prefix)
        address = {"GRISTMILL_QUEUE": f"{components.amqp_url}?prefix={prefix}"}
        checked = workplace.command("doctor", "--create", **address, GRISTMILL_STORE=f"file://{workplace.folder}/store")
        assert checked.exit_status == 0, str(checked)
        assert "ok           queue control, publish" in checked.stdout, str(checked)
    finally:
        components.remove(prefix)


def test_localstack_starts_with_the_queues_and_the_bucket_of_a_target(components: Components) -> None:
    prefix = f"starts-{uuid.uuid4().hex[:8]}"
    script = ROOT / "localstack/localstack/queues_and_bucket.py"
    environment = {**os.environ, "GRISTMILL_PREFIX": prefix, "AWS_ENDPOINT_URL": components.aws_endpoint}
    try:
        for _ in range(2):
            subprocess.run([sys.executable, script], env=environment, check=True, timeout=60)
        sqs = components.client("sqs")
        urls = sqs.list_queues(QueueNamePrefix=f"{prefix}-")["QueueUrls"]
        assert sorted(url.rpartition("/")[2] for url in urls) == [f"{prefix}-{name}" for name in OWN_QUEUES]
        for url in urls:
            attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
            assert attributes["MessageRetentionPeriod"] == "1209600" and "RedrivePolicy" not in attributes
        assert components.client("s3").head_bucket(Bucket=prefix)
    finally:
        components.remove(prefix)
