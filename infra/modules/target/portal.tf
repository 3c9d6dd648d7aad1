# The optional portal: one task that shows the jobs in a browser.
#
# The internet cannot reach it: network.tf. Its policy only reads. Cancelling, continuing and starting jobs is what enqueuers
# do; only a portal that acts also disposes of dead letters.

locals {
  has_portal  = var.target.portal != null
  portal_acts = local.has_portal && !try(var.target.portal.read_only, true)

  portal_role = { for name, portal in { portal = var.target.portal } : name => merge(portal, {
    role         = "portal"
    image        = coalesce(portal.image, local.reducer_image)
    stop_seconds = 30
    command = concat(
      ["portal", "--no-open", "--listen", "0.0.0.0:9464"],
      portal.read_only ? ["--read-only"] : [],
      portal.trust_header == null ? [] : ["--trust-header", portal.trust_header],
      flatten([for host in portal.hosts : ["--host", host]]),
    )
    # The header is known before the ARN of the secret.
    secrets = portal.trust_header == null ? { GRISTMILL_PORTAL_TOKEN = portal.token_secret_arn } : {}
  }) if portal != null }
}

resource "aws_iam_role_policy_attachment" "portal_acts" {
  count = local.portal_acts ? 1 : 0

  role       = aws_iam_role.role["portal-task"].name
  policy_arn = module.access.policy_arns["enqueuer"]
}

data "aws_iam_policy_document" "portal_disposes" {
  count = local.portal_acts && local.is_sqs ? 1 : 0

  statement {
    sid       = "SendBack"
    actions   = ["sqs:SendMessage"]
    resources = [for part in ["tasks", "results"] : "${trimsuffix(module.queue[0].arns.control, "control")}*-${part}"]
  }

  statement {
    sid       = "DeleteDeadLetters"
    actions   = ["sqs:DeleteMessage"]
    resources = [module.queue[0].arns.dead_letters]
  }
}

resource "aws_iam_role_policy" "portal_disposes" {
  count = length(data.aws_iam_policy_document.portal_disposes)

  name   = "dispose-of-dead-letters"
  role   = aws_iam_role.role["portal-task"].name
  policy = data.aws_iam_policy_document.portal_disposes[0].json
}
