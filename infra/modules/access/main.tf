# One policy for each role, based on the calls of its code (the README.md beside this file has the table).
#
# Each role may list where it may read, and nothing else in these buckets. S3 reports a missing object only to principals that may list
# it, and roles frequently request objects that do not exist yet (a result, a cancel request). For that S3 evaluates s3:ListBucket with
# the name of the object as s3:prefix, so a condition on the prefix covers both (https://github.com/ceph/ceph/pull/68577 and
# https://github.com/kopia/kopia/pull/3072 observed it; the documentation of S3 does not mention the prefix).

locals {
  bucket_arn = "arn:${var.partition}:s3:::${var.bucket}"
  target_arn = "${local.bucket_arn}/${var.prefix}"
  job_arn    = "${local.target_arn}/jobs/*"

  # BUCKET or BUCKET/PREFIX.
  input_object_arns  = [for place in var.inputs : "arn:${var.partition}:s3:::${trimsuffix(place, "/")}/*"]
  output_bucket_arns = distinct([for place in var.outputs : "arn:${var.partition}:s3:::${split("/", place)[0]}"])
  output_object_arns = [for place in var.outputs : "arn:${var.partition}:s3:::${trimsuffix(place, "/")}/*"]

  # Empty if the target uses RabbitMQ. The names of the queues of jobs are PREFIX-…-tasks and PREFIX-…-results.
  control      = var.queue_arns == null ? [] : [var.queue_arns.control]
  dead_letters = var.queue_arns == null ? [] : [var.queue_arns.dead_letters]
  own_queues   = concat(local.control, local.dead_letters)
  every_queue  = [for arn in local.control : "${trimsuffix(arn, "control")}*"]
  tasks        = formatlist("%s-tasks", local.every_queue)
  results      = formatlist("%s-results", local.every_queue)
  # Those with which `gristmill doctor` finds out whether queues can be created and used.
  doctor_queues = [for arn in local.control : "${trimsuffix(arn, "control")}doctor-*"]
  # Services give their tasks this tag, with the name of the target. Empty if the workers run elsewhere.
  worker_tag   = "GristmillWorker"
  worker_tasks = var.cluster_name == null ? [] : ["arn:${var.partition}:ecs:*:*:task/${var.cluster_name}/*"]

  # Statements that let roles list locations: one for each bucket, with the beginnings of names.
  read_by = {
    worker   = concat(local.store, var.inputs)
    reducer  = concat(local.store, var.outputs)
    enqueuer = concat(local.store, var.inputs, var.outputs)
    portal   = concat(local.store, var.outputs)
    operator = local.store
  }
  store = ["${var.bucket}/${var.prefix}"]
  look = { for role, places in local.read_by : role => [
    for index, bucket in distinct([for place in places : split("/", place)[0]]) : {
      sid       = "Look${index}"
      actions   = ["s3:ListBucket"]
      resources = ["arn:${var.partition}:s3:::${bucket}"]
      conditions = [{
        test     = "StringLike"
        variable = "s3:prefix"
        values   = distinct([for place in places : trimprefix("${trimsuffix(place, "/")}/*", "${bucket}/") if split("/", place)[0] == bucket])
      }]
    }
  ] }

  find_own_queues = { sid = "FindQueues", actions = ["sqs:GetQueueAttributes", "sqs:GetQueueUrl"], resources = local.own_queues }
  find_queues     = merge(local.find_own_queues, { resources = local.every_queue })
  encrypt         = { sid = "Encrypt", actions = ["kms:Decrypt", "kms:GenerateDataKey"], resources = var.kms_key_arns }
  read_inputs     = { sid = "DecryptInputs", actions = ["kms:Decrypt"], resources = var.input_kms_key_arns }
  decrypt_outputs = { sid = "DecryptOutputs", actions = ["kms:Decrypt"], resources = var.output_kms_key_arns }
  read            = { sid = "ReadJobs", actions = ["s3:GetObject"] }

  # Of each role: `jobs` are names of objects of any job, `target` names of other objects of the target.
  rules = {
    worker = [
      local.find_queues,
      {
        sid       = "WorkOnTasks"
        actions   = ["sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:ReceiveMessage", "sqs:SendMessage"]
        resources = local.tasks
      },
      { sid = "Announce", actions = ["sqs:SendMessage"], resources = concat(local.results, local.dead_letters) },
      merge(local.read, {
        jobs      = ["spec.json", "inputs/*", "plan/*", "result.json", "checkpoints/*", "parts/*-kept-*", "control/cancel", "control/members", "copies/*"]
        target    = ["schedule/*", "snapshots/*"]
        resources = local.input_object_arns
      }),
      {
        sid     = "WriteRowsAndLogs"
        actions = ["s3:PutObject"]
        jobs    = ["parts/*", "logs/*", "checkpoints/*"]
        target  = ["workers/*"]
      },
      { sid = "LeaveWorkers", actions = ["s3:DeleteObject"], jobs = ["checkpoints/*"], target = ["workers/*"] },
      # Keeps the service from stopping a busy task.
      {
        sid        = "ProtectOwnTasks"
        actions    = ["ecs:UpdateTaskProtection"]
        resources  = local.worker_tasks
        conditions = [{ test = "StringEquals", variable = "aws:ResourceTag/${local.worker_tag}", values = [var.name] }]
      },
      local.encrypt,
      local.read_inputs,
    ]

    reducer = [
      local.find_queues,
      # Those of a job exist while it may run. Its creator tags a queue.
      { sid = "KeepQueues", actions = ["sqs:CreateQueue", "sqs:DeleteQueue", "sqs:TagQueue"], resources = concat(local.tasks, local.results) },
      {
        sid       = "HearNewsAndCommitResults"
        actions   = ["sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:ReceiveMessage"]
        resources = concat(local.control, local.results)
      },
      # Mini-batches, speculative runs of slow ones, and to the reducer of the job what the plan has.
      { sid = "PublishAndBury", actions = ["sqs:SendMessage"], resources = concat(local.tasks, local.results, local.dead_letters) },
      # A finished output removes the uploads of dead writers of the same object. IAM knows no prefix of this action.
      { sid = "LookForUploads", actions = ["s3:ListBucketMultipartUploads"], resources = distinct(concat([local.bucket_arn], local.output_bucket_arns)) },
      merge(local.read, { jobs = ["*"], target = ["quotas.json", "schedule/*", "workers/*"], resources = local.output_object_arns }),
      {
        sid       = "WriteScheduleLedgerReportsAndResult"
        actions   = ["s3:PutObject"]
        jobs      = ["control/members", "copies/*", "ledger/*", "logs/*", "output/*", "plan/published", "plan/publishing", "progress.json", "result.json"]
        target    = ["open/*", "queues/*", "schedule/*"]
        resources = local.output_object_arns
      },
      {
        sid     = "RemovePartsMarkersAndOldSchedules"
        actions = ["s3:DeleteObject"]
        jobs    = ["checkpoints/*", "parts/*"]
        target  = ["open/*", "queues/*", "schedule/*"]
      },
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
      local.find_own_queues,
      { sid = "TellNews", actions = ["sqs:SendMessage"], resources = local.control },
      merge(local.read, {
        jobs      = ["*"]
        target    = ["open/*", "quotas.json", "schedule/*", "snapshots/*", "workers/*"]
        resources = concat(local.input_object_arns, local.output_object_arns)
      }),
      # The ledger too: `retry` commits another round, and keeps the rows of mini-batches of which some items run again.
      {
        sid     = "Describe"
        actions = ["s3:PutObject"]
        jobs    = ["spec.json", "inputs/*", "plan/*", "ledger/*", "parts/*-kept-*", "reused.json", "control/cancel", "control/priority"]
        target  = ["open/*", "snapshots/*", "writers/*"]
      },
      { sid = "AbortUploads", actions = ["s3:AbortMultipartUpload"], jobs = ["inputs/*"], target = ["snapshots/*"] },
      # `retry` reopens an ended or canceled job, lets reducers publish its plan again, and removes the announcement of an
      # interrupted `clean`. The marker of a job that is just being removed goes again.
      {
        sid     = "Reopen"
        actions = ["s3:DeleteObject"]
        jobs    = ["result.json", "checkpoints/*", "control/cancel", "control/removing", "copies/decided", "plan/failed", "plan/published"]
        target  = ["open/*"]
      },
      local.encrypt,
      local.read_inputs,
      local.decrypt_outputs,
    ]

    # Shows jobs, queues and dead letters, which it receives without deleting them. It changes nothing.
    portal = [
      local.find_queues,
      {
        sid       = "ReadDeadLetters"
        actions   = ["sqs:ChangeMessageVisibility", "sqs:ReceiveMessage"]
        resources = local.dead_letters
      },
      merge(local.read, { jobs = ["*"], target = ["open/*", "schedule/*", "workers/*"], resources = local.output_object_arns }),
      { sid = "Decrypt", actions = ["kms:Decrypt"], resources = var.kms_key_arns },
      local.decrypt_outputs,
    ]

    # `doctor`, which creates queues as of a job, sends a message through each, and deletes them; `dead-letters`, which also sends
    # messages back to the queues of their jobs; `clean`, which removes ended jobs.
    operator = [
      local.find_queues,
      { sid = "TryToKeepQueues", actions = ["sqs:CreateQueue", "sqs:DeleteQueue", "sqs:TagQueue"], resources = local.doctor_queues },
      {
        sid       = "ReadDeadLetters"
        actions   = ["sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:ReceiveMessage"]
        resources = concat(local.dead_letters, local.doctor_queues)
      },
      { sid = "SendBack", actions = ["sqs:SendMessage"], resources = local.every_queue },
      merge(local.read, { jobs = ["*"], target = ["open/*", "quotas.json", "schedule/*", "snapshots/removing"] }),
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
      for rule in concat(rules, local.look[role]) : {
        sid        = rule.sid
        actions    = rule.actions
        conditions = try(rule.conditions, [])
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

      dynamic "condition" {
        for_each = statement.value.conditions

        content {
          test     = condition.value.test
          variable = condition.value.variable
          values   = condition.value.values
        }
      }
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
