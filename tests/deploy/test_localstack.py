"""localstack/: the queues and the bucket with which LocalStack and RabbitMQ start are those of a target."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid

from components import Components
from harness import ROOT

OWN_QUEUES = ["control", "dead-letters"]


def test_rabbitmq_starts_with_the_queues_that_roles_declare() -> None:
    """Another argument would make every declaration fail."""
    definitions = json.loads((ROOT / "localstack/rabbitmq/definitions.json").read_text())
    limit = re.search(r"const DELIVERY_LIMIT: u32 = (\d+);", (ROOT / "services/queue/src/rabbitmq.rs").read_text())[1]
    queues = {queue["name"]: queue for queue in definitions["queues"]}
    assert list(queues) == [f"gristmill-{name}" for name in OWN_QUEUES]
    for queue in queues.values():
        assert queue["arguments"] == {"x-queue-type": "quorum", "x-delivery-limit": int(limit)}
        assert queue["durable"] and not queue["auto_delete"]


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
