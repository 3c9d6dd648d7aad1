# The two queues of a target itself in SQS: control, through which commands tell reducers that there is news, and the dead
# letters. Reducers create two more for each job that may run, PREFIX-…-tasks and PREFIX-…-results, and delete them when it has
# ended. infra/README.md, "Keys and secrets", says how they are encrypted.
#
# Their attributes are those that `gristmill doctor --create` gives them (services/queue/src/sqs/attributes.rs).

locals {
  # Without a key, SQS uses its own.
  is_managed_key = var.kms_key_arn == null

  # Roles have rights on PREFIX-*, which are also the queues of a target whose prefix continues this one: team and team-a.
  parts   = split("-", var.prefix)
  shorter = [for count in range(1, length(local.parts)) : join("-", slice(local.parts, 0, count))]
  listed  = flatten([for found in data.aws_sqs_queues.alike : [for url in coalesce(found.queue_urls, []) : reverse(split("/", url))[0]]])
  others = [
    for name in distinct(local.listed) : trimsuffix(name, "-control")
    if endswith(name, "-control") && (contains(local.shorter, trimsuffix(name, "-control")) || startswith(name, "${var.prefix}-") && name != "${var.prefix}-control")
  ]
}

data "aws_sqs_queues" "alike" {
  for_each = toset(concat(["${var.prefix}-"], formatlist("%s-control", local.shorter)))

  queue_name_prefix = each.key
}

resource "aws_sqs_queue" "own" {
  for_each = toset(["control", "dead-letters"])

  name                              = "${var.prefix}-${each.key}"
  message_retention_seconds         = 1209600
  visibility_timeout_seconds        = 60
  receive_wait_time_seconds         = 20
  sqs_managed_sse_enabled           = local.is_managed_key ? true : null
  kms_master_key_id                 = var.kms_key_arn
  kms_data_key_reuse_period_seconds = local.is_managed_key ? null : 3600

  lifecycle {
    precondition {
      condition     = length(local.others) == 0
      error_message = "There is the target ${join(", ", local.others)} in this account and region, and roles of the one whose name is shorter would have rights on queues of the other: choose a name for ${var.prefix} that does not continue, and is not continued by, that of another target (team-a and team-b, not team and team-a)."
    }
  }
}

data "aws_iam_policy_document" "tls_only" {
  for_each = aws_sqs_queue.own

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
  for_each = var.allow_plain_http ? {} : aws_sqs_queue.own

  queue_url = each.value.url
  policy    = data.aws_iam_policy_document.tls_only[each.key].json
}
