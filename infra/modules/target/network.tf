# Security groups of the tasks, and what they may connect to. Scrapers of metrics connect to workers and reducers, and the clients that the caller names to
# the portal: the group of an internal load balancer, or that of a machine through which users forward a port. The portal has
# a group of its own, because a client that reaches a portal with a trusted header can set that header.

locals {
  own_group_ids = { for name, group in aws_security_group.own : name => group.id }

  # HTTPS to everywhere reaches AWS, and the package index of jobs that name a requirements file.
  public_egress = coalesce(var.target.public_egress, var.platform.public_egress)
  egress = { for name, rule in merge(
    { for name, rule in { HTTPS = { port = 443, cidr_block = "0.0.0.0/0" } } : name => rule if local.public_egress },
    { for name, rule in {
      endpoints = { name = "AWS endpoints", port = 443, security_group_id = try(var.platform.endpoints.security_group_id, null) }
      s3        = { name = "S3", port = 443, prefix_list_id = try(var.platform.endpoints.s3_prefix_list_id, null) }
    } : rule.name => rule if !local.public_egress && var.platform.endpoints != null },
    { for name, rule in { RabbitMQ = { port = 5671, security_group_id = one(module.rabbitmq[*].security_group_id) } } : name => rule if !local.is_sqs },
    var.target.egress,
    ) : name => {
    port              = rule.port
    cidr_block        = try(rule.cidr_block, null)
    security_group_id = try(rule.security_group_id, null)
    prefix_list_id    = try(rule.prefix_list_id, null)
  } }

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

resource "aws_vpc_security_group_egress_rule" "own" {
  for_each = { for pair in setproduct(keys(aws_security_group.own), keys(local.egress)) : "${pair[0]}: ${pair[1]}" => merge(local.egress[pair[1]], { of = pair[0], description = pair[1] }) }

  security_group_id            = local.own_group_ids[each.value.of]
  description                  = each.value.description
  cidr_ipv4                    = each.value.cidr_block
  referenced_security_group_id = each.value.security_group_id
  prefix_list_id               = each.value.prefix_list_id
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
}
