"""Creates the queues and the bucket of a target in LocalStack, once it is ready.

LocalStack runs it itself, from its folder `init/ready.d`, in the container and on the host alike. Running it again
changes nothing.
"""

import json
import os

import boto3

PREFIX = os.environ.get("GRISTMILL_PREFIX", "gristmill")
# Gristmill itself fails mini-batches that are delivered too often; only unreadable messages get this far.
RECEIVE_COUNT_MAX = 1000
RETENTION_SECONDS = 14 * 24 * 60 * 60

clients = {
    "endpoint_url": os.environ.get("AWS_ENDPOINT_URL", f"http://{os.environ.get('LOCALSTACK_HOST', '127.0.0.1:4566')}"),
    "region_name": os.environ.get("AWS_REGION", "us-east-1"),
    "aws_access_key_id": "test",
    "aws_secret_access_key": "test",
}
sqs = boto3.client("sqs", **clients)


def create(name, **attributes):
    attributes["MessageRetentionPeriod"] = str(RETENTION_SECONDS)
    url = sqs.create_queue(QueueName=f"{PREFIX}-{name}", Attributes=attributes)["QueueUrl"]
    return sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]


redrive = json.dumps({"deadLetterTargetArn": create("dead-letters"), "maxReceiveCount": str(RECEIVE_COUNT_MAX)})
create("tasks", RedrivePolicy=redrive)
create("results", RedrivePolicy=redrive)
# Only in this region an existing bucket of the caller is not an error.
boto3.client("s3", **clients).create_bucket(Bucket=PREFIX)
