"""What test_access.py knows of the permissions of each role, besides the table in infra/modules/access/README.md."""

from __future__ import annotations

from access import Need

# Queues of a target in the table; `*` is anything.
QUEUES = ("control", "dead-letters", "*", "*-tasks", "*-results", "doctor-*")

# Permissions that the job of the tests does not use. Emulators have no keys, so those of KMS are in no entry.
RARE: dict[str, set[Need]] = {
    "worker": {
        ("ecs:UpdateTaskProtection", "own tasks"),  # on ECS
        ("s3:DeleteObject", "jobs/*/checkpoints/*"),  # with item checkpoints
        ("s3:GetObject", "jobs/*/checkpoints/*"),
        ("s3:GetObject", "jobs/*/control/members"),  # after a failure
        ("s3:GetObject", "jobs/*/parts/*-kept-*"),  # in a later round
        ("s3:GetObject", "jobs/*/copies/*"),  # with `speculation`
        ("s3:GetObject", "jobs/*/plan/*"),  # for tables
        ("s3:ListBucket", "inputs"),  # for folders
        ("s3:PutObject", "jobs/*/checkpoints/*"),
        ("sqs:ChangeMessageVisibility", "*-tasks"),  # if a run outlasts the first lease
        ("sqs:SendMessage", "*-tasks"),  # for a next try, and for mini-batches that a stopping worker returns
        ("sqs:SendMessage", "dead-letters"),  # for unreadable messages
    },
    "reducer": {
        ("s3:AbortMultipartUpload", "jobs/*/logs/*"),  # after failed uploads
        ("s3:AbortMultipartUpload", "jobs/*/output/*"),
        ("s3:AbortMultipartUpload", "outputs/*"),
        ("s3:DeleteObject", "jobs/*/checkpoints/*"),  # with item checkpoints
        ("s3:DeleteObject", "schedule/*"),  # after 64 schedules
        ("s3:GetObject", "outputs/*"),  # if two reducers write one output
        ("s3:ListBucket", "outputs"),
        ("s3:ListBucketMultipartUploads", "bucket"),  # after an output of more than 8 MiB
        ("s3:PutObject", "jobs/*/control/members"),  # with several workers
        ("s3:PutObject", "jobs/*/copies/*"),  # with `speculation`
        ("s3:PutObject", "jobs/*/output/*"),  # for an output without a folder
        ("s3:PutObject", "jobs/*/plan/publishing"),  # if publishing takes seconds
        ("s3:PutObject", "open/*"),  # if a job is opened again just as it ends
        ("sqs:ChangeMessageVisibility", "*-results"),  # if a reducer stops, or a commit takes long
        ("sqs:TagQueue", "*-results"),  # if the target has tags
        ("sqs:TagQueue", "*-tasks"),
        ("sqs:ChangeMessageVisibility", "control"),  # if a reducer stops just then
        ("sqs:SendMessage", "dead-letters"),  # for unreadable messages
    },
    "enqueuer": {
        ("s3:AbortMultipartUpload", "jobs/*/inputs/*"),  # after a failed upload
        ("s3:AbortMultipartUpload", "snapshots/*"),
        ("s3:DeleteObject", "jobs/*/checkpoints/*"),  # by `retry` with another script
        ("s3:DeleteObject", "jobs/*/control/cancel"),  # by `retry`
        ("s3:DeleteObject", "jobs/*/control/removing"),  # by `retry`, after an interrupted `clean`
        ("s3:DeleteObject", "jobs/*/copies/decided"),  # by `retry` of a job with `speculation`
        ("s3:DeleteObject", "jobs/*/plan/failed"),  # by `retry`
        ("s3:DeleteObject", "jobs/*/plan/published"),
        ("s3:DeleteObject", "jobs/*/result.json"),
        ("s3:DeleteObject", "open/*"),  # by `retry` during a `clean`
        ("s3:GetObject", "inputs/*"),  # for tables
        ("s3:GetObject", "open/*"),  # of a job that waits
        ("s3:GetObject", "schedule/*"),  # of a job that waits, and with quotas
        ("s3:GetObject", "workers/*"),  # with `requires`
        ("s3:GetObject", "outputs/*"),  # by people, for results
        ("s3:ListBucket", "outputs"),
        ("s3:PutObject", "jobs/*/control/cancel"),  # by `cancel` of an open job
        ("s3:PutObject", "jobs/*/control/priority"),  # by `priority`
        ("s3:PutObject", "jobs/*/ledger/*"),  # by `retry`
        ("s3:PutObject", "jobs/*/parts/*-kept-*"),  # by `retry` of a job with rejects
        ("s3:PutObject", "jobs/*/reused.json"),  # when a result is reused
    },
    "portal": {
        ("s3:GetObject", "open/*"),  # of a job that waits
        ("s3:ListBucket", "outputs"),  # for an output that was deleted
        ("s3:GetObject", "workers/*"),  # while a worker runs
        ("sqs:ChangeMessageVisibility", "dead-letters"),  # if there are any
    },
    "operator": {
        ("s3:AbortMultipartUpload", "doctor/*"),  # after a failed upload
        ("s3:DeleteObject", "workers/*"),  # by `clean`, after a worker was killed
        ("s3:GetObject", "quotas.json"),  # by `target quota`
        ("s3:PutObject", "quotas.json"),
        ("sqs:ChangeMessageVisibility", "dead-letters"),  # by `dead-letters`, if there are any
        ("sqs:DeleteMessage", "dead-letters"),
        ("sqs:TagQueue", "doctor-*"),  # if the target has tags
    },
}

# Requests that no role of a fleet makes: Terraform creates buckets, and only local jobs clear a queue.
NOT_ALLOWED = {"PurgeQueue", "CreateBucket"}

# Requests of each role that could destroy a job or forge an outcome, besides those of everybody. Queues of a job are
# called one-tasks and one-results here.
DANGEROUS = {
    "worker": """
        s3:DeleteObject jobs/one/parts/0-1 jobs/one/ledger/0 open/one queues/one.1 schedule/1
        s3:PutObject jobs/one/spec.json jobs/one/plan/0 jobs/one/plan/published
        s3:PutObject jobs/one/ledger/0 jobs/one/progress.json
        s3:PutObject jobs/one/result.json jobs/one/control/cancel jobs/one/nodes/0
        s3:PutObject open/one queues/one.1 schedule/1 snapshots/00
        sqs:SendMessage control
        sqs:ReceiveMessage control dead-letters one-results
        sqs:CreateQueue one-tasks one-results
        sqs:DeleteQueue one-tasks one-results
        sqs:TagQueue one-tasks one-results
    """,
    "reducer": """
        s3:DeleteObject jobs/one/ledger/0
        s3:PutObject jobs/one/spec.json jobs/one/plan/0 jobs/one/plan/planning jobs/one/parts/0-1
        s3:PutObject snapshots/00 workers/one
        sqs:ReceiveMessage dead-letters one-tasks
    """,
    "enqueuer": """
        s3:DeleteObject jobs/one/ledger/0 queues/one.1 schedule/1
        s3:PutObject jobs/one/parts/0-1 jobs/one/result.json jobs/one/progress.json
        s3:PutObject queues/one.1 schedule/1 workers/one
        sqs:SendMessage dead-letters one-tasks one-results
        sqs:ReceiveMessage control dead-letters one-tasks one-results
        sqs:CreateQueue one-tasks one-results
        sqs:DeleteQueue one-tasks one-results
        sqs:TagQueue one-tasks one-results
    """,
    "portal": """
        s3:PutObject jobs/one/spec.json jobs/one/ledger/0 jobs/one/result.json jobs/one/control/cancel
        s3:PutObject open/one schedule/1
        s3:DeleteObject jobs/one/result.json
        sqs:SendMessage control dead-letters one-tasks one-results
        sqs:ReceiveMessage control one-tasks one-results
        sqs:DeleteMessage dead-letters
        sqs:CreateQueue one-tasks one-results
        sqs:DeleteQueue one-tasks one-results
        sqs:TagQueue one-tasks one-results
    """,
    "operator": """
        s3:PutObject jobs/one/spec.json jobs/one/ledger/0 jobs/one/result.json queues/one.1 schedule/1
        sqs:ReceiveMessage control one-tasks one-results
        sqs:CreateQueue one-tasks one-results
        sqs:DeleteQueue one-tasks one-results
        sqs:TagQueue one-tasks one-results
    """,
}
OF_EVERYBODY = """
    s3:PutObject inputs/*
    sqs:PurgeQueue control dead-letters one-tasks one-results
    sqs:CreateQueue control dead-letters
    sqs:DeleteQueue control dead-letters
    sqs:TagQueue control dead-letters
    sqs:UntagQueue control dead-letters one-tasks one-results
"""
