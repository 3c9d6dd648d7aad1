# The three queues of a target in SQS: tasks, results, and the dead letters of both.
#
# Their attributes are those that `gristmill doctor --create` gives them (services/queue/src/sqs/attributes.rs).

locals {
  # Without a key, SQS uses its own.
  is_managed_key = var.kms_key_arn == null
  queues         = merge(aws_sqs_queue.live, { dead-letters = aws_sqs_queue.dead_letters })
}

resource "aws_sqs_queue" "dead_letters" {
  name                              = "${var.prefix}-dead-letters"
  message_retention_seconds         = 1209600
  visibility_timeout_seconds        = 60
  receive_wait_time_seconds         = 20
  sqs_managed_sse_enabled           = local.is_managed_key ? true : null
  kms_master_key_id                 = var.kms_key_arn
  kms_data_key_reuse_period_seconds = local.is_managed_key ? null : 3600
}

resource "aws_sqs_queue" "live" {
  for_each = toset(["tasks", "results"])

  name                              = "${var.prefix}-${each.key}"
  message_retention_seconds         = 1209600
  visibility_timeout_seconds        = 60
  receive_wait_time_seconds         = 20
  sqs_managed_sse_enabled           = local.is_managed_key ? true : null
  kms_master_key_id                 = var.kms_key_arn
  kms_data_key_reuse_period_seconds = local.is_managed_key ? null : 3600

  # The engine counts lost deliveries itself and ends a mini-batch long before this: only unreadable messages reach the
  # dead letters.
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead_letters.arn
    maxReceiveCount     = 100
  })
}

resource "aws_sqs_queue_redrive_allow_policy" "dead_letters" {
  queue_url = aws_sqs_queue.dead_letters.url

  redrive_allow_policy = jsonencode({
    redrivePermission = "byQueue"
    sourceQueueArns   = [for queue in aws_sqs_queue.live : queue.arn]
  })
}

data "aws_iam_policy_document" "tls_only" {
  for_each = local.queues

  statement {
    sid       = "RefusePlainHttp"
    effect    = "Deny"
    actions   = ["sqs:*"]
    resources = [each.value.arn]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}

# A local emulator has no certificate.
resource "aws_sqs_queue_policy" "tls_only" {
  for_each = var.allow_plain_http ? {} : local.queues

  queue_url = each.value.url
  policy    = data.aws_iam_policy_document.tls_only[each.key].json
}
