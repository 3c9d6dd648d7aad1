"""Who may do what: the actions of every role, each with the line of the sources that needs it.

The policies in infra/modules/access are held against this table in both directions, and the table against the sources.
A resource is a queue of the target, a place in its store (`*` stands for a job, or for anything at the end), or a place
outside.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SERVICES = ROOT / "services"

QUEUES = ("tasks", "results", "dead-letters")
BUCKET = ("bucket",)


@dataclass(frozen=True)
class Need:
    """An action on some resources, and where the sources ask for it: a file, and what stands in it."""

    action: str
    resources: tuple[str, ...]
    file: str
    text: str
    # Why a job without faults does not come to it; nothing where it does.
    only: str = ""


FIND_QUEUES = [
    Need("sqs:GetQueueUrl", QUEUES, "queue/src/sqs/attributes.rs", "client.get_queue_url()"),
    Need("sqs:GetQueueAttributes", QUEUES, "queue/src/sqs/attributes.rs", "client.get_queue_attributes()"),
]
# Which keys there are is the account's affair; the emulators have none.
ENCRYPT = [
    Need("kms:Decrypt", ("key",), "storage/src/aws.rs", "RequestChecksumCalculation", "with a key of the account"),
    Need("kms:GenerateDataKey", ("key",), "storage/src/aws.rs", "force_path_style", "with a key of the account"),
]
AGENT = "."

NEEDS: dict[str, list[Need]] = {
    "worker": [
        *FIND_QUEUES,
        Need("sqs:ReceiveMessage", ("tasks",), "worker/src/agent/receive.rs", "tasks.receive(request)"),
        Need("sqs:DeleteMessage", ("tasks",), "worker/src/announce.rs", "self.tasks.acknowledge(&receipts)"),
        Need(
            "sqs:ChangeMessageVisibility",
            ("tasks",),
            "worker/src/lease.rs",
            "tasks.extend(&asked)",
            "when a run outlasts the first lease",
        ),
        Need(
            "sqs:SendMessage",
            ("tasks",),
            "worker/src/announce.rs",
            "self.tasks.send(next_tries.clone())",
            "for a next try, and for what a drained worker gives back",
        ),
        Need("sqs:SendMessage", ("results",), "worker/src/announce.rs", "self.results.send(messages.clone())"),
        Need(
            "sqs:SendMessage",
            ("dead-letters",),
            "worker/src",
            'Message::new(letter, "dead-letters")',
            "for what nobody can read",
        ),
        Need("s3:ListBucket", BUCKET, "storage/src/target.rs", 'target.store.list(Some(&target.path("open")))'),
        Need("s3:ListBucket", ("inputs",), "storage/src/tree.rs", "store.list(Some(path))", "for folders of data"),
        Need("s3:GetObject", ("jobs/*/spec.json",), "storage/src/job_store.rs", 'self.json("spec.json")'),
        Need("s3:GetObject", ("jobs/*/plan/*",), "worker/src/prepare.rs", "self.store.plan_chunk(chunk)", "for tables"),
        Need("s3:GetObject", ("jobs/*/result.json",), "storage/src/job_store.rs", 'self.json("result.json")'),
        Need("s3:GetObject", ("jobs/*/control/cancel",), "storage/src/job_store.rs", 'self.get("control/cancel")'),
        Need(
            "s3:GetObject",
            ("jobs/*/nodes/*",),
            "storage/src/seats.rs",
            'format!("nodes/{seat}/{epoch:010}")',
            "where another worker has had the seat",
        ),
        Need("s3:GetObject", ("snapshots/*",), "storage/src/target.rs", 'format!("snapshots/{digest}")'),
        Need("s3:GetObject", ("inputs/*",), "storage/src/remote.rs", "store.get_opts(path, options)"),
        Need("s3:PutObject", ("jobs/*/parts/*",), "worker/src/announce.rs", "self.store.put_part(&name, rows.clone())"),
        Need("s3:PutObject", ("jobs/*/logs/*",), "worker/src/node/logs.rs", "self.store.put_log(&name, content)"),
        Need(
            "s3:PutObject", ("jobs/*/nodes/*",), "worker/src/node/seat.rs", "store.claim_seat(number, epoch + 1, node)"
        ),
        Need("ecs:UpdateTaskProtection", ("tasks of the cluster",), AGENT, "/task-protection/", "on ECS"),
        *ENCRYPT,
    ],
    "reducer": [
        *FIND_QUEUES,
        Need("sqs:ReceiveMessage", ("results",), "queue/src/demultiplexer.rs", "shared.queue.receive(request)"),
        Need("sqs:DeleteMessage", ("results",), "reducer/src/reducer.rs", "results.acknowledge(&receipts)"),
        Need(
            "sqs:ChangeMessageVisibility",
            ("results",),
            "reducer/src/reducer.rs",
            "self.results.release(&receipts)",
            "when a reducer stops, or a commit takes long",
        ),
        Need(
            "sqs:SendMessage",
            ("dead-letters",),
            "reducer/src/service.rs",
            "self.service.dead_letters.send(vec![letter])",
            "for what nobody can read",
        ),
        Need("s3:ListBucket", BUCKET, "reducer/src/service.rs", "self.service.target.open_jobs()"),
        Need("s3:GetObject", ("jobs/*/*",), "reducer/src/service.rs", "self.job.spec()"),
        Need(
            "s3:GetObject",
            ("outputs/*",),
            "reducer/src/output/object.rs",
            "exists(&self.url)",
            "when two reducers write one output",
        ),
        Need("s3:PutObject", ("jobs/*/ledger/*",), "storage/src/job_store.rs", "self.create(&ledger_segment(sequence)"),
        Need("s3:PutObject", ("jobs/*/logs/*",), "reducer/src/reports/upload.rs", "put_log_file("),
        Need("s3:PutObject", ("jobs/*/progress.json",), "reducer/src/reducer.rs", "self.store.put_progress(&progress)"),
        Need("s3:PutObject", ("jobs/*/result.json",), "storage/src/job_store.rs", 'self.create("result.json"'),
        Need(
            "s3:PutObject",
            ("jobs/*/output/*",),
            "cli/src/enqueue.rs",
            'job.shown("output")',
            "for an output without a folder",
        ),
        Need(
            "s3:PutObject",
            ("open/*",),
            "reducer/src/service.rs",
            "self.target.mark_open(&self.job_id)",
            "when a job is opened again just as it ends",
        ),
        Need("s3:PutObject", ("outputs/*",), "reducer/src/output/mod.rs", "upload(&url, self.bytes_expected())"),
        Need("s3:DeleteObject", ("jobs/*/parts/*",), "storage/src/job_store.rs", "self.store.delete_stream("),
        Need("s3:DeleteObject", ("open/*",), "reducer/src/service.rs", "self.target.mark_ended(&self.job_id)"),
        Need(
            "s3:ListBucketMultipartUploads",
            BUCKET,
            "storage/src/upload/s3.rs",
            "client.list_multipart_uploads()",
            "after an output of more than 8 MiB",
        ),
        Need(
            "s3:AbortMultipartUpload",
            ("jobs/*/logs/*", "jobs/*/output/*", "outputs/*"),
            "storage/src/upload/s3.rs",
            "client.abort_multipart_upload()",
            "when an upload fails",
        ),
        *ENCRYPT,
    ],
    "enqueuer": [
        *FIND_QUEUES,
        Need("sqs:SendMessage", ("tasks",), "partitioner/src/publish.rs", "queue.send(messages.clone())"),
        Need("sqs:SendMessage", ("results",), "cli/src/enqueue.rs", "results.send(vec![Message::new(body, job_id)])"),
        Need("s3:ListBucket", BUCKET, "storage/src/target.rs", 'list_with_delimiter(Some(&self.path("jobs")))'),
        Need("s3:ListBucket", ("inputs",), "partitioner/src/remote.rs", "store.list(Some(&prefix))"),
        Need("s3:GetObject", ("jobs/*/*",), "cli/src/show.rs", "job.store.progress()"),
        Need("s3:GetObject", ("snapshots/*",), "storage/src/target.rs", "self.store.head(&path)"),
        Need("s3:GetObject", ("inputs/*",), "partitioner/src/remote.rs", "store.get_opts(path", "for tables"),
        Need("s3:GetObject", ("outputs/*",), "storage/src/remote.rs", "store.get_opts(path", "by people, for results"),
        Need("s3:PutObject", ("jobs/*/spec.json",), "cli/src/enqueue.rs", "job.put_spec(&spec)"),
        Need("s3:PutObject", ("jobs/*/plan/*",), "storage/src/job_store.rs", "self.create(&plan_chunk(chunk), lines"),
        Need("s3:PutObject", ("jobs/*/ledger/*",), "reducer/src/reducer.rs", "ResultEvent::Reopened", "by `retry`"),
        Need(
            "s3:PutObject",
            ("jobs/*/control/cancel",),
            "storage/src/job_store.rs",
            'self.put("control/cancel"',
            "by `cancel` of a job that has not ended",
        ),
        Need("s3:PutObject", ("open/*",), "cli/src/enqueue.rs", "store.mark_open(&spec.job_id)"),
        Need("s3:PutObject", ("snapshots/*",), "storage/src/target.rs", "Upload::file(Arc::clone(&self.store)"),
        Need(
            "s3:AbortMultipartUpload",
            ("snapshots/*",),
            "storage/src/upload.rs",
            "upload.abort()",
            "when an upload fails",
        ),
        Need(
            "s3:DeleteObject",
            ("jobs/*/result.json", "jobs/*/control/cancel"),
            "storage/src/job_store.rs",
            'for name in ["result.json", "control/cancel"]',
            "by `retry`",
        ),
        *ENCRYPT,
    ],
    "operator": [
        *FIND_QUEUES,
        Need("sqs:SendMessage", QUEUES, "cli/src/doctor/traffic.rs", "queue.send(vec![Message::new(body.clone()"),
        Need("sqs:ReceiveMessage", QUEUES, "cli/src/doctor/traffic.rs", "queue.receive(request)"),
        Need("sqs:ChangeMessageVisibility", QUEUES, "cli/src/doctor/traffic.rs", "queue.extend(&[(delivery.receipt"),
        Need("sqs:DeleteMessage", QUEUES, "cli/src/doctor/traffic.rs", "queue.acknowledge(&[delivery.receipt])"),
        Need("s3:ListBucket", BUCKET, "storage/src/probe.rs", "store.list(Some(folder))"),
        Need("s3:GetObject", ("jobs/*/*",), "cli/src/show.rs", "job.store.log(&name)", "to look at jobs"),
        Need("s3:GetObject", ("doctor/*",), "storage/src/probe.rs", "store.get(&whole)"),
        Need("s3:PutObject", ("doctor/*",), "storage/src/probe.rs", 'store.put(&whole, "probe".into())'),
        Need("s3:DeleteObject", ("doctor/*",), "storage/src/probe.rs", "store.delete(path)"),
        Need(
            "s3:AbortMultipartUpload", ("doctor/*",), "storage/src/probe.rs", "upload.abort()", "when an upload fails"
        ),
        *ENCRYPT,
    ],
}

# What IAM calls the requests that have no action of their own.
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
# Requests that no role of a fleet makes: Terraform makes queues and buckets, and only local jobs clear a queue.
NOT_ALLOWED = {"CreateQueue", "DeleteQueue", "PurgeQueue", "CreateBucket"}

REQUEST = re.compile(r"\b(?:client|s3|self\.aws\(\)\.await\.s3\(\))\s*\.((?:[a-z]+_)+[a-z]+)\(\)")


def requests_of_sources() -> dict[str, set[str]]:
    """The requests that the sources make with the SDKs, by service: {"sqs": {"GetQueueUrl", …}, "s3": …}."""
    folders = {"sqs": SERVICES / "queue/src/sqs", "s3": SERVICES / "storage/src"}
    return {
        service: {
            "".join(word.capitalize() for word in name.split("_"))
            for file in folder.rglob("*.rs")
            for name in REQUEST.findall(file.read_text())
        }
        for service, folder in folders.items()
    }
