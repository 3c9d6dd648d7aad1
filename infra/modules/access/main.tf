# Who may do what: one policy for each role, from the calls that its code makes (infra/README.md has the table).
#
# s3:ListBucket is for the whole bucket: only who may list a bucket is told that an object is absent, and not that it is
# forbidden, and roles live on asking for what is not there yet (a result, a request to cancel).

locals {
  bucket_arn = "arn:${var.partition}:s3:::${var.bucket}"
  target_arn = "${local.bucket_arn}/${var.prefix}"
  job_arn    = "${local.target_arn}/jobs/*"

  # BUCKET or BUCKET/PREFIX.
  input_bucket_arns  = distinct([for place in var.inputs : "arn:${var.partition}:s3:::${split("/", place)[0]}"])
  input_object_arns  = [for place in var.inputs : "arn:${var.partition}:s3:::${trimsuffix(place, "/")}/*"]
  output_bucket_arns = distinct([for place in var.outputs : "arn:${var.partition}:s3:::${split("/", place)[0]}"])
  output_object_arns = [for place in var.outputs : "arn:${var.partition}:s3:::${trimsuffix(place, "/")}/*"]

  has_queues     = var.queue_arns != null
  all_queue_arns = local.has_queues ? [var.queue_arns.tasks, var.queue_arns.results, var.queue_arns.dead_letters] : []
}

data "aws_iam_policy_document" "worker" {
  dynamic "statement" {
    for_each = local.has_queues ? [var.queue_arns] : []

    content {
      sid       = "FindQueues"
      actions   = ["sqs:GetQueueAttributes", "sqs:GetQueueUrl"]
      resources = local.all_queue_arns
    }
  }

  dynamic "statement" {
    for_each = local.has_queues ? [var.queue_arns] : []

    content {
      sid = "WorkOnTasks"
      actions = [
        "sqs:ChangeMessageVisibility",
        "sqs:DeleteMessage",
        "sqs:ReceiveMessage",
        "sqs:SendMessage",
      ]
      resources = [statement.value.tasks]
    }
  }

  dynamic "statement" {
    for_each = local.has_queues ? [var.queue_arns] : []

    content {
      sid       = "Announce"
      actions   = ["sqs:SendMessage"]
      resources = [statement.value.results, statement.value.dead_letters]
    }
  }

  statement {
    sid       = "Look"
    actions   = ["s3:ListBucket"]
    resources = distinct(concat([local.bucket_arn], local.input_bucket_arns))
  }

  statement {
    sid     = "ReadJobs"
    actions = ["s3:GetObject"]
    resources = concat([
      "${local.job_arn}/spec.json",
      "${local.job_arn}/plan/*",
      "${local.job_arn}/result.json",
      "${local.job_arn}/control/cancel",
      "${local.job_arn}/nodes/*",
      "${local.target_arn}/snapshots/*",
    ], local.input_object_arns)
  }

  statement {
    sid     = "WriteRowsLogsAndSeats"
    actions = ["s3:PutObject"]
    resources = [
      "${local.job_arn}/parts/*",
      "${local.job_arn}/logs/*",
      "${local.job_arn}/nodes/*",
    ]
  }

  # So that the service does not stop a task that works.
  dynamic "statement" {
    for_each = var.cluster_name == null ? [] : [var.cluster_name]

    content {
      sid       = "ProtectOwnTask"
      actions   = ["ecs:UpdateTaskProtection"]
      resources = ["arn:${var.partition}:ecs:*:*:task/${statement.value}/*"]
    }
  }

  dynamic "statement" {
    for_each = length(var.kms_key_arns) == 0 ? [] : [var.kms_key_arns]

    content {
      sid       = "Encrypt"
      actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
      resources = statement.value
    }
  }
}

data "aws_iam_policy_document" "reducer" {
  dynamic "statement" {
    for_each = local.has_queues ? [var.queue_arns] : []

    content {
      sid       = "FindQueues"
      actions   = ["sqs:GetQueueAttributes", "sqs:GetQueueUrl"]
      resources = local.all_queue_arns
    }
  }

  dynamic "statement" {
    for_each = local.has_queues ? [var.queue_arns] : []

    content {
      sid = "CommitResults"
      actions = [
        "sqs:ChangeMessageVisibility",
        "sqs:DeleteMessage",
        "sqs:ReceiveMessage",
      ]
      resources = [statement.value.results]
    }
  }

  dynamic "statement" {
    for_each = local.has_queues ? [var.queue_arns] : []

    content {
      sid       = "Bury"
      actions   = ["sqs:SendMessage"]
      resources = [statement.value.dead_letters]
    }
  }

  statement {
    sid       = "Look"
    actions   = ["s3:ListBucket"]
    resources = distinct(concat([local.bucket_arn], local.output_bucket_arns))
  }

  statement {
    sid       = "ReadJobs"
    actions   = ["s3:GetObject"]
    resources = concat(["${local.job_arn}/*"], local.output_object_arns)
  }

  statement {
    sid     = "WriteLedgerReportsAndResult"
    actions = ["s3:PutObject"]
    resources = concat([
      "${local.job_arn}/ledger/*",
      "${local.job_arn}/logs/*",
      "${local.job_arn}/output/*",
      "${local.job_arn}/progress.json",
      "${local.job_arn}/result.json",
      "${local.target_arn}/open/*",
    ], local.output_object_arns)
  }

  statement {
    sid       = "RemovePartsAndMarkers"
    actions   = ["s3:DeleteObject"]
    resources = ["${local.job_arn}/parts/*", "${local.target_arn}/open/*"]
  }

  # A finished output removes the uploads of dead writers of the same object.
  statement {
    sid       = "FindUploads"
    actions   = ["s3:ListBucketMultipartUploads"]
    resources = distinct(concat([local.bucket_arn], local.output_bucket_arns))
  }

  statement {
    sid       = "AbortUploads"
    actions   = ["s3:AbortMultipartUpload"]
    resources = concat(["${local.job_arn}/logs/*", "${local.job_arn}/output/*"], local.output_object_arns)
  }

  dynamic "statement" {
    for_each = length(var.kms_key_arns) == 0 ? [] : [var.kms_key_arns]

    content {
      sid       = "Encrypt"
      actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
      resources = statement.value
    }
  }
}

# People and pipelines: enqueue, status, logs, jobs, cancel, retry.
data "aws_iam_policy_document" "enqueuer" {
  dynamic "statement" {
    for_each = local.has_queues ? [var.queue_arns] : []

    content {
      sid       = "FindQueues"
      actions   = ["sqs:GetQueueAttributes", "sqs:GetQueueUrl"]
      resources = local.all_queue_arns
    }
  }

  dynamic "statement" {
    for_each = local.has_queues ? [var.queue_arns] : []

    content {
      sid       = "Publish"
      actions   = ["sqs:SendMessage"]
      resources = [statement.value.tasks, statement.value.results]
    }
  }

  statement {
    sid       = "Look"
    actions   = ["s3:ListBucket"]
    resources = distinct(concat([local.bucket_arn], local.input_bucket_arns))
  }

  statement {
    sid     = "ReadJobs"
    actions = ["s3:GetObject"]
    resources = concat(
      ["${local.job_arn}/*", "${local.target_arn}/snapshots/*"],
      local.input_object_arns,
      local.output_object_arns,
    )
  }

  # The ledger too: `retry` commits that a job is open again.
  statement {
    sid     = "Describe"
    actions = ["s3:PutObject"]
    resources = [
      "${local.job_arn}/spec.json",
      "${local.job_arn}/plan/*",
      "${local.job_arn}/ledger/*",
      "${local.job_arn}/control/cancel",
      "${local.target_arn}/open/*",
      "${local.target_arn}/snapshots/*",
    ]
  }

  statement {
    sid       = "AbortUploads"
    actions   = ["s3:AbortMultipartUpload"]
    resources = ["${local.target_arn}/snapshots/*"]
  }

  # `retry` opens an ended or canceled job again.
  statement {
    sid       = "Reopen"
    actions   = ["s3:DeleteObject"]
    resources = ["${local.job_arn}/result.json", "${local.job_arn}/control/cancel"]
  }

  dynamic "statement" {
    for_each = length(var.kms_key_arns) == 0 ? [] : [var.kms_key_arns]

    content {
      sid       = "Encrypt"
      actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
      resources = statement.value
    }
  }
}

# Who looks after the target: `doctor`, which sends a message through each queue, and `dead-letters`.
data "aws_iam_policy_document" "operator" {
  dynamic "statement" {
    for_each = local.has_queues ? [var.queue_arns] : []

    content {
      sid = "TryQueues"
      actions = [
        "sqs:ChangeMessageVisibility",
        "sqs:DeleteMessage",
        "sqs:GetQueueAttributes",
        "sqs:GetQueueUrl",
        "sqs:ReceiveMessage",
        "sqs:SendMessage",
      ]
      resources = local.all_queue_arns
    }
  }

  statement {
    sid       = "Look"
    actions   = ["s3:ListBucket"]
    resources = [local.bucket_arn]
  }

  statement {
    sid       = "ReadJobs"
    actions   = ["s3:GetObject"]
    resources = ["${local.job_arn}/*"]
  }

  statement {
    sid       = "TryStore"
    actions   = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
    resources = ["${local.target_arn}/doctor/*"]
  }

  dynamic "statement" {
    for_each = length(var.kms_key_arns) == 0 ? [] : [var.kms_key_arns]

    content {
      sid       = "Encrypt"
      actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
      resources = statement.value
    }
  }
}

resource "aws_iam_policy" "role" {
  for_each = {
    worker   = { policy = data.aws_iam_policy_document.worker.json, does = "works on mini-batches" }
    reducer  = { policy = data.aws_iam_policy_document.reducer.json, does = "commits results and writes outputs" }
    enqueuer = { policy = data.aws_iam_policy_document.enqueuer.json, does = "enqueues, follows, cancels and retries jobs" }
    operator = { policy = data.aws_iam_policy_document.operator.json, does = "checks the target and reads dead letters" }
  }

  name        = "${var.name}-${each.key}"
  description = "${var.name}: who ${each.value.does}"
  policy      = each.value.policy
}
