"""Permissions of each role: the table "Permissions of each role" in infra/README.md, and the requests of the sources.

A resource of the table is a queue of the target, a place in its store (`*` is a job, or anything at the end), or a
place elsewhere.
"""

from __future__ import annotations

import itertools
import re

from harness import ROOT

SERVICES = ROOT / "services"
QUEUES = ("tasks", "results", "dead-letters")
ROW = re.compile(r"^\| (worker|reducer|enqueuer|portal|operator) \| (`.*?) \| (.*?) \| .+ \|$", re.MULTILINE)

Need = tuple[str, str]  # Action, resource.


def needs() -> dict[str, set[Need]]:
    """Returns the permissions of each role."""
    table: dict[str, set[Need]] = {}
    for role, actions, resources in ROW.findall((ROOT / "infra/README.md").read_text()):
        cells = (re.findall(r"`(.+?)`", cell) for cell in (actions, resources))
        table.setdefault(role, set()).update(itertools.product(*cells))
    return table


NEEDS = needs()
# Permissions that the job of the tests does not use. Emulators have no keys, so those of KMS are in no entry.
RARE: dict[str, set[Need]] = {
    "worker": {
        ("ecs:UpdateTaskProtection", "tasks of the cluster"),  # on ECS
        ("s3:GetObject", "jobs/*/control/members"),  # after a failure
        ("s3:GetObject", "jobs/*/copies/*"),  # with `speculation`
        ("s3:GetObject", "jobs/*/nodes/*"),  # after another worker had the seat
        ("s3:GetObject", "jobs/*/plan/*"),  # for tables
        ("s3:ListBucket", "inputs"),  # for folders
        ("sqs:ChangeMessageVisibility", "tasks"),  # if a run outlasts the first lease
        ("sqs:SendMessage", "dead-letters"),  # for unreadable messages
        ("sqs:SendMessage", "tasks"),  # for a next try, and for mini-batches that a stopping worker returns
    },
    "reducer": {
        ("s3:AbortMultipartUpload", "jobs/*/logs/*"),  # after failed uploads
        ("s3:AbortMultipartUpload", "jobs/*/output/*"),
        ("s3:AbortMultipartUpload", "outputs/*"),
        ("s3:DeleteObject", "turns/*"),  # after many turns
        ("s3:GetObject", "turns/*"),  # with quotas
        ("s3:GetObject", "workers/*"),  # with `requires`
        ("s3:GetObject", "outputs/*"),  # if two reducers write one output
        ("s3:ListBucketMultipartUploads", "bucket"),  # after an output of more than 8 MiB
        ("s3:PutObject", "jobs/*/control/members"),  # with several workers
        ("s3:PutObject", "jobs/*/control/turn"),  # with quotas
        ("s3:PutObject", "jobs/*/copies/*"),  # with `speculation`
        ("s3:PutObject", "jobs/*/output/*"),  # for an output without a folder
        ("s3:PutObject", "open/*"),  # with quotas, or if a job is opened again just as it ends
        ("s3:PutObject", "turns/*"),  # with quotas
        ("sqs:ChangeMessageVisibility", "results"),  # if a reducer stops, or a commit takes long
        ("sqs:SendMessage", "dead-letters"),  # for unreadable messages
        ("sqs:SendMessage", "tasks"),  # with `speculation`
    },
    "enqueuer": {
        ("s3:AbortMultipartUpload", "jobs/*/inputs/*"),  # after a failed upload
        ("s3:AbortMultipartUpload", "snapshots/*"),
        ("s3:DeleteObject", "jobs/*/control/cancel"),  # by `retry`
        ("s3:DeleteObject", "jobs/*/control/removing"),  # by `retry`, after an interrupted `clean`
        ("s3:DeleteObject", "jobs/*/copies/settled"),  # by `retry` of a job with `speculation`
        ("s3:DeleteObject", "jobs/*/result.json"),  # by `retry`
        ("s3:DeleteObject", "turns/*"),  # after many turns
        ("s3:GetObject", "inputs/*"),  # for tables
        ("s3:GetObject", "open/*"),  # of a job that waits for its turn
        ("s3:GetObject", "turns/*"),  # with quotas
        ("s3:GetObject", "workers/*"),  # with `requires`
        ("s3:GetObject", "outputs/*"),  # by people, for results
        ("s3:PutObject", "jobs/*/control/cancel"),  # by `cancel` of an open job
        ("s3:PutObject", "jobs/*/control/priority"),  # by `priority`
        ("s3:PutObject", "jobs/*/control/turn"),  # with quotas
        ("s3:PutObject", "jobs/*/ledger/*"),  # by `retry`
        ("s3:PutObject", "jobs/*/reused.json"),  # when a result is reused
        ("s3:PutObject", "turns/*"),  # with quotas
    },
    "portal": {
        ("s3:GetObject", "open/*"),  # of a job that waits for its turn
        ("s3:GetObject", "workers/*"),  # while a worker runs
        ("sqs:ChangeMessageVisibility", "dead-letters"),  # if there are any
    },
    "operator": {
        ("s3:AbortMultipartUpload", "doctor/*"),  # after a failed upload
        ("s3:DeleteObject", "workers/*"),  # by `clean`, after a worker was killed
        ("s3:GetObject", "quotas.json"),  # by `target quota`
        ("s3:PutObject", "quotas.json"),
        ("sqs:ChangeMessageVisibility", "results"),  # by `doctor`, of an idle queue
        ("sqs:ChangeMessageVisibility", "tasks"),
        ("sqs:DeleteMessage", "results"),
        ("sqs:DeleteMessage", "tasks"),
    },
}

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
# Requests that no role of a fleet makes: Terraform creates queues and buckets, and only local jobs clear a queue.
NOT_ALLOWED = {"CreateQueue", "DeleteQueue", "PurgeQueue", "CreateBucket"}

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
