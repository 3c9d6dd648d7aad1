# One policy for each role, based on the calls of its code (infra/README.md has the table).
#
# s3:ListBucket covers the whole bucket: S3 reports a missing object only to principals that may list its bucket, and roles
# frequently request objects that do not exist yet (a result, a cancel request).

locals {
  bucket_arn = "arn:${var.partition}:s3:::${var.bucket}"
  target_arn = "${local.bucket_arn}/${var.prefix}"
  job_arn    = "${local.target_arn}/jobs/*"

  # BUCKET or BUCKET/PREFIX.
  input_bucket_arns  = distinct([for place in var.inputs : "arn:${var.partition}:s3:::${split("/", place)[0]}"])
  input_object_arns  = [for place in var.inputs : "arn:${var.partition}:s3:::${trimsuffix(place, "/")}/*"]
  output_bucket_arns = distinct([for place in var.outputs : "arn:${var.partition}:s3:::${split("/", place)[0]}"])
  output_object_arns = [for place in var.outputs : "arn:${var.partition}:s3:::${trimsuffix(place, "/")}/*"]

  # Empty if the target uses RabbitMQ.
  tasks        = var.queue_arns == null ? [] : [var.queue_arns.tasks]
  results      = var.queue_arns == null ? [] : [var.queue_arns.results]
  dead_letters = var.queue_arns == null ? [] : [var.queue_arns.dead_letters]
  queues       = concat(local.tasks, local.results, local.dead_letters)
  # Empty if the workers run elsewhere.
  worker_tasks = var.cluster_name == null ? [] : ["arn:${var.partition}:ecs:*:*:task/${var.cluster_name}/*"]

  find_queues     = { sid = "FindQueues", actions = ["sqs:GetQueueAttributes", "sqs:GetQueueUrl"], resources = local.queues }
  encrypt         = { sid = "Encrypt", actions = ["kms:Decrypt", "kms:GenerateDataKey"], resources = var.kms_key_arns }
  read_inputs     = { sid = "DecryptInputs", actions = ["kms:Decrypt"], resources = var.input_kms_key_arns }
  decrypt_outputs = { sid = "DecryptOutputs", actions = ["kms:Decrypt"], resources = var.output_kms_key_arns }
  look            = { sid = "Look", actions = ["s3:ListBucket"], resources = [local.bucket_arn] }
  look_at_inputs  = merge(local.look, { resources = distinct(concat([local.bucket_arn], local.input_bucket_arns)) })
  read            = { sid = "ReadJobs", actions = ["s3:GetObject"] }

  # Of each role: `jobs` are names of objects of any job, `target` names of other objects of the target.
  rules = {
    worker = [
      local.find_queues,
      local.look_at_inputs,
      {
        sid       = "WorkOnTasks"
        actions   = ["sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:ReceiveMessage", "sqs:SendMessage"]
        resources = local.tasks
      },
      { sid = "Announce", actions = ["sqs:SendMessage"], resources = concat(local.results, local.dead_letters) },
      merge(local.read, {
        jobs      = ["spec.json", "inputs/*", "plan/*", "result.json", "control/cancel", "control/members", "control/priority", "copies/*", "nodes/*"]
        target    = ["quotas.json", "snapshots/*"]
        resources = local.input_object_arns
      }),
      { sid = "WriteRowsLogsAndSeats", actions = ["s3:PutObject"], jobs = ["parts/*", "logs/*", "nodes/*"], target = ["workers/*"] },
      { sid = "LeaveWorkers", actions = ["s3:DeleteObject"], target = ["workers/*"] },
      # Keeps the service from stopping a busy task.
      { sid = "ProtectOwnTask", actions = ["ecs:UpdateTaskProtection"], resources = local.worker_tasks },
      local.encrypt,
      local.read_inputs,
    ]

    reducer = [
      local.find_queues,
      {
        sid       = "CommitResults"
        actions   = ["sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:ReceiveMessage"]
        resources = local.results
      },
      # Into the tasks it sends second starts of slow mini-batches.
      { sid = "CopyAndBury", actions = ["sqs:SendMessage"], resources = concat(local.tasks, local.dead_letters) },
      # A finished output removes the uploads of dead writers of the same object.
      merge(local.look, {
        actions   = ["s3:ListBucket", "s3:ListBucketMultipartUploads"]
        resources = distinct(concat([local.bucket_arn], local.output_bucket_arns))
      }),
      merge(local.read, { jobs = ["*"], target = ["quotas.json", "turns/*", "workers/*"], resources = local.output_object_arns }),
      {
        sid       = "WriteLedgerReportsAndResult"
        actions   = ["s3:PutObject"]
        jobs      = ["control/members", "control/turn", "copies/*", "ledger/*", "logs/*", "output/*", "progress.json", "result.json"]
        target    = ["open/*", "turns/*"]
        resources = local.output_object_arns
      },
      { sid = "RemovePartsAndMarkers", actions = ["s3:DeleteObject"], jobs = ["parts/*"], target = ["open/*", "turns/*"] },
      {
        sid       = "AbortUploads"
        actions   = ["s3:AbortMultipartUpload"]
        jobs      = ["logs/*", "output/*"]
        resources = local.output_object_arns
      },
      local.encrypt,
      { sid = "EncryptOutputs", actions = ["kms:Decrypt", "kms:GenerateDataKey"], resources = var.output_kms_key_arns },
    ]

    # Users and pipelines: enqueue, status, logs, jobs, cancel, retry.
    enqueuer = [
      local.find_queues,
      local.look_at_inputs,
      { sid = "Publish", actions = ["sqs:SendMessage"], resources = concat(local.tasks, local.results) },
      merge(local.read, {
        jobs      = ["*"]
        target    = ["open/*", "quotas.json", "snapshots/*", "turns/*", "workers/*"]
        resources = concat(local.input_object_arns, local.output_object_arns)
      }),
      # The ledger too: `retry` commits that a job is open again.
      {
        sid     = "Describe"
        actions = ["s3:PutObject"]
        jobs = [
          "spec.json", "inputs/*", "plan/*", "ledger/*", "reused.json", "control/cancel", "control/priority", "control/turn",
        ]
        target = ["open/*", "snapshots/*", "turns/*", "writers/*"]
      },
      { sid = "AbortUploads", actions = ["s3:AbortMultipartUpload"], jobs = ["inputs/*"], target = ["snapshots/*"] },
      # `retry` reopens an ended or canceled job, and removes the announcement of an interrupted `clean`.
      {
        sid     = "Reopen"
        actions = ["s3:DeleteObject"]
        jobs    = ["result.json", "control/cancel", "control/removing", "copies/settled"]
        target  = ["turns/*"]
      },
      local.encrypt,
      local.read_inputs,
      local.decrypt_outputs,
    ]

    # Shows jobs, queues and dead letters, which it receives without deleting them. It changes nothing.
    portal = [
      local.find_queues,
      local.look,
      {
        sid       = "ReadDeadLetters"
        actions   = ["sqs:ChangeMessageVisibility", "sqs:ReceiveMessage"]
        resources = local.dead_letters
      },
      merge(local.read, { jobs = ["*"], target = ["open/*", "workers/*"], resources = local.output_object_arns }),
      { sid = "Decrypt", actions = ["kms:Decrypt"], resources = var.kms_key_arns },
      local.decrypt_outputs,
    ]

    # `doctor`, which sends a message through each queue; `dead-letters`; `clean`, which removes ended jobs.
    operator = [
      local.find_queues,
      local.look,
      {
        sid       = "TryQueues"
        actions   = ["sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:ReceiveMessage", "sqs:SendMessage"]
        resources = local.queues
      },
      merge(local.read, { jobs = ["*"], target = ["open/*", "quotas.json", "snapshots/removing"] }),
      {
        sid     = "AnnounceRemoval"
        actions = ["s3:PutObject"]
        jobs    = ["control/removing"]
        target  = ["quotas.json", "snapshots/removing"]
      },
      { sid = "RemoveJobs", actions = ["s3:DeleteObject"], jobs = ["*"], target = ["snapshots/*", "workers/*", "writers/*"] },
      {
        sid     = "TryStore"
        actions = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
        target  = ["doctor/*"]
      },
      local.encrypt,
    ]
  }

  # Statements without resources are omitted.
  statements = {
    for role, rules in local.rules : role => [
      for rule in rules : {
        sid     = rule.sid
        actions = rule.actions
        resources = concat(
          [for name in try(rule.jobs, []) : "${local.job_arn}/${name}"],
          [for name in try(rule.target, []) : "${local.target_arn}/${name}"],
          try(rule.resources, []),
        )
      }
    ]
  }

  purposes = {
    worker   = "works on mini-batches"
    reducer  = "commits results and writes outputs"
    enqueuer = "enqueues, follows, cancels and retries jobs"
    portal   = "shows jobs and queues in a browser, and changes nothing"
    operator = "checks the target, reads dead letters and removes old jobs"
  }
}

data "aws_iam_policy_document" "role" {
  for_each = local.statements

  dynamic "statement" {
    for_each = [for statement in each.value : statement if length(statement.resources) > 0]

    content {
      sid       = statement.value.sid
      actions   = statement.value.actions
      resources = statement.value.resources
    }
  }
}

resource "aws_iam_policy" "role" {
  for_each = local.purposes

  name        = "${var.name}-${each.key}"
  description = "${var.name}: ${each.value}"
  policy      = data.aws_iam_policy_document.role[each.key].json

  lifecycle {
    precondition {
      condition     = length(replace(data.aws_iam_policy_document.role[each.key].json, "/\\s/", "")) <= 6144
      error_message = "The policy ${var.name}-${each.key} has more than the 6144 characters that IAM allows: name fewer locations in `inputs` and `outputs`, such as whole buckets."
    }
  }
}
