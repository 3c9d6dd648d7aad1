# Security groups of the tasks. Scrapers of metrics connect to workers and reducers, and the clients that the caller names to
# the portal: the group of an internal load balancer, or that of a machine through which users forward a port. The portal has
# a group of its own, because a client that reaches a portal with a trusted header can set that header.

locals {
  own_group_ids = { for name, group in aws_security_group.own : name => group.id }

  clients = merge(
    { for range in var.target.scraper_cidr_blocks : "Prometheus: ${range}" => { of = "tasks", group = null, range = range } },
    { for name, group in merge(var.target.portal[*].client_security_group_ids...) : "Clients: ${name}" => { of = "portal", group = group, range = null } },
    { for range in try(var.target.portal.client_cidr_blocks, []) : "Clients: ${range}" => { of = "portal", group = null, range = range } },
  )
}

resource "aws_security_group" "own" {
  for_each = merge(
    { tasks = "Tasks of ${var.target.name}" },
    local.has_portal ? { portal = "Portal of ${var.target.name}" } : {},
  )

  name        = "${var.target.name}-${each.key}"
  description = each.value
  vpc_id      = var.platform.vpc_id

  tags = { Name = "${var.target.name}-${each.key}" }
}

resource "aws_vpc_security_group_ingress_rule" "client" {
  for_each = local.clients

  security_group_id            = local.own_group_ids[each.value.of]
  description                  = each.key
  referenced_security_group_id = each.value.group
  cidr_ipv4                    = each.value.range
  ip_protocol                  = "tcp"
  from_port                    = 9464
  to_port                      = 9464
}

resource "aws_vpc_security_group_egress_rule" "https" {
  for_each = aws_security_group.own

  security_group_id = each.value.id
  description       = "AWS, and the package index of jobs that name a requirements file"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "amqps" {
  for_each = { for name, group in aws_security_group.own : name => group if !local.is_sqs }

  security_group_id            = each.value.id
  description                  = "RabbitMQ"
  referenced_security_group_id = module.rabbitmq[0].security_group_id
  ip_protocol                  = "tcp"
  from_port                    = 5671
  to_port                      = 5671
}
