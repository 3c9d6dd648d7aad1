# The optional portal: one task that shows the jobs in a browser.
#
# The internet cannot reach it. Its security group admits only the clients that the caller names: the group of an
# internal load balancer, or that of a machine through which users forward a port. It is not in the group of the other tasks,
# to which scrapers of metrics connect, because a client that reaches a portal with a trusted header can set that header.

locals {
  has_portal = var.portal != null
  # Known before the ARN of the secret.
  has_token = local.has_portal && try(var.portal.trust_header, null) == null

  portal_task = { for name, portal in { portal = var.portal } : name => {
    role = "portal"
    command = concat(
      ["portal", "--no-open", "--listen", "0.0.0.0:9464"],
      portal.read_only ? ["--read-only"] : [],
      portal.trust_header == null ? [] : ["--trust-header", portal.trust_header],
      flatten([for host in portal.hosts : ["--host", host]]),
    )
    variables    = {}
    cpu          = portal.cpu
    memory       = portal.memory
    disk_gib     = null
    gpus         = 0
    architecture = portal.architecture
    stop_seconds = 30
  } if portal != null }
}

resource "aws_security_group" "portal" {
  count = local.has_portal ? 1 : 0

  name        = "${var.name}-portal"
  description = "Portal of ${var.name}"
  vpc_id      = var.platform.vpc_id

  tags = { Name = "${var.name}-portal" }
}

resource "aws_vpc_security_group_ingress_rule" "portal_group" {
  for_each = try(var.portal.client_security_group_ids, {})

  security_group_id            = aws_security_group.portal[0].id
  description                  = "Clients: ${each.key}"
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = 9464
  to_port                      = 9464
}

resource "aws_vpc_security_group_ingress_rule" "portal_range" {
  for_each = toset(try(var.portal.client_cidr_blocks, []))

  security_group_id = aws_security_group.portal[0].id
  description       = "Clients: ${each.key}"
  cidr_ipv4         = each.key
  ip_protocol       = "tcp"
  from_port         = 9464
  to_port           = 9464
}

resource "aws_vpc_security_group_egress_rule" "portal_https" {
  count = local.has_portal ? 1 : 0

  security_group_id = aws_security_group.portal[0].id
  description       = "AWS"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "portal_amqps" {
  count = local.has_portal && !local.is_sqs ? 1 : 0

  security_group_id            = aws_security_group.portal[0].id
  description                  = "RabbitMQ"
  referenced_security_group_id = module.rabbitmq[0].security_group_id
  ip_protocol                  = "tcp"
  from_port                    = 5671
  to_port                      = 5671
}

# The policy of the portal only reads. Cancelling, continuing and starting jobs is what enqueuers do.
resource "aws_iam_role_policy_attachment" "portal_acts" {
  count = local.has_portal && !try(var.portal.read_only, true) ? 1 : 0

  role       = module.task["portal"].role_name
  policy_arn = module.access.policy_arns["enqueuer"]
}

resource "aws_ecs_service" "portal" {
  # checkov:skip=CKV_AWS_333: only in the default network (environments/dev), as the route to AWS; its group admits no one else.
  count = local.has_portal ? 1 : 0

  name            = "${var.name}-portal"
  cluster         = var.platform.cluster.arn
  task_definition = module.task["portal"].definition_arn
  desired_count   = 1

  # The new one runs before the old one stops; both show the same.
  deployment_minimum_healthy_percent = 100
  deployment_maximum_percent         = 200
  propagate_tags                     = "SERVICE"
  enable_ecs_managed_tags            = true
  force_new_deployment               = true

  capacity_provider_strategy {
    capacity_provider = "FARGATE"
    base              = 1
    weight            = 1
  }

  deployment_circuit_breaker {
    enable   = true
    rollback = true
  }

  network_configuration {
    subnets          = var.platform.subnet_ids
    security_groups  = [aws_security_group.portal[0].id]
    assign_public_ip = var.assign_public_ip
  }

  dynamic "load_balancer" {
    for_each = try(var.portal.target_group_arn, null)[*]

    content {
      target_group_arn = load_balancer.value
      container_name   = "gristmill"
      container_port   = 9464
    }
  }
}
