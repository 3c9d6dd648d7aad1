"""Permissions of each role: the table in infra/modules/access/README.md, and the requests of the sources.

A resource of the table is a queue of the target, a place in its store (`*` is a job, or anything at the end), or a
place elsewhere.
"""

from __future__ import annotations

import itertools
import re

from harness import ROOT

SERVICES = ROOT / "services"
ROW = re.compile(r"^\| (worker|reducer|enqueuer|portal|operator) \| (`.*?) \| (.*?) \| .+ \|$", re.MULTILINE)

Need = tuple[str, str]  # Action, resource.


def needs() -> dict[str, set[Need]]:
    """Returns the permissions of each role."""
    table: dict[str, set[Need]] = {}
    for role, actions, resources in ROW.findall((ROOT / "infra/modules/access/README.md").read_text()):
        cells = (re.findall(r"`(.+?)`", cell) for cell in (actions, resources))
        table.setdefault(role, set()).update(itertools.product(*cells))
    return table


NEEDS = needs()

# IAM's names for requests without an action of the same name.
ACTIONS_OF_REQUESTS = {
    "SendMessageBatch": "sqs:SendMessage",
    "DeleteMessageBatch": "sqs:DeleteMessage",
    "ChangeMessageVisibilityBatch": "sqs:ChangeMessageVisibility",
    "ListObjectsV2": "s3:ListBucket",
    "HeadBucket": "s3:ListBucket",
    "HeadObject": "s3:GetObject",
    "DeleteObjects": "s3:DeleteObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "UploadPartCopy": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
}
REQUEST = re.compile(r"\b(?:client|s3|self\.aws\(\)\.await\.s3\(\))\s*\.((?:[a-z]+_)+[a-z]+)\(\)")


def requests_of_sources() -> dict[str, set[str]]:
    """Returns the SDK requests in the sources, by service: {"sqs": {"GetQueueUrl", …}, "s3": …}."""
    sqs = SERVICES / "queue/src"
    sources = {"sqs": [sqs / "sqs.rs", *(sqs / "sqs").rglob("*.rs")], "s3": [*(SERVICES / "storage/src").rglob("*.rs")]}
    return {
        service: {
            "".join(word.capitalize() for word in name.split("_"))
            for file in files
            for name in REQUEST.findall(file.read_text())
        }
        for service, files in sources.items()
    }
