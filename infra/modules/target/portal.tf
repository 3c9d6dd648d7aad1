# The optional portal: one task that shows the jobs in a browser.
#
# The internet cannot reach it: network.tf. Its policy only reads. Cancelling, continuing and starting jobs is what enqueuers
# do.

locals {
  has_portal = var.target.portal != null

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
  count = local.has_portal && !try(var.target.portal.read_only, true) ? 1 : 0

  role       = aws_iam_role.role["portal-task"].name
  policy_arn = module.access.policy_arns["enqueuer"]
}
