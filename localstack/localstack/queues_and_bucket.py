"""Creates the two queues of a target itself and its bucket in LocalStack, once it is ready.

LocalStack runs it itself, from its folder `init/ready.d`, in the container and on the host alike. Running it again
changes nothing. Reducers create the queues of jobs.
"""

import os

import boto3

PREFIX = os.environ.get("GRISTMILL_PREFIX", "gristmill")
RETENTION_SECONDS = 14 * 24 * 60 * 60

clients = {
    "endpoint_url": os.environ.get("AWS_ENDPOINT_URL", f"http://{os.environ.get('LOCALSTACK_HOST', '127.0.0.1:4566')}"),
    "region_name": os.environ.get("AWS_REGION", "us-east-1"),
    "aws_access_key_id": "test",
    "aws_secret_access_key": "test",
}
sqs = boto3.client("sqs", **clients)


for name in ("control", "dead-letters"):
    attributes = {"MessageRetentionPeriod": str(RETENTION_SECONDS)}
    sqs.create_queue(QueueName=f"{PREFIX}-{name}", Attributes=attributes)
# Only in this region an existing bucket of the caller is not an error.
boto3.client("s3", **clients).create_bucket(Bucket=PREFIX)
