# AWS endpoints in the network, for private subnets without NAT. Without NAT package indexes are unreachable: such jobs need
# images with their packages.

locals {
  has_endpoints = var.platform.endpoints != null
  # https://docs.aws.amazon.com/AmazonECS/latest/developerguide/vpc-endpoints.html and, for the queues,
  # https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-internetwork-traffic-privacy.html
  endpoint_services = local.has_endpoints ? toset(concat(
    # For tasks: queues, images, logs, and the broker's address. S3 stores image layers.
    ["sqs", "ecr.api", "ecr.dkr", "logs", "secretsmanager"],
    # For the agent of an EC2 instance; Fargate does not need them.
    local.has_gpus ? ["ecs", "ecs-agent", "ecs-telemetry"] : [],
  )) : toset([])
}

data "aws_vpc" "this" {
  count = local.has_endpoints ? 1 : 0

  id = var.platform.vpc_id
}

resource "aws_security_group" "endpoints" {
  count = local.has_endpoints ? 1 : 0

  name        = "${var.platform.name}-endpoints"
  description = "AWS endpoints of ${var.platform.name}"
  vpc_id      = var.platform.vpc_id

  tags = { Name = "${var.platform.name}-endpoints" }
}

resource "aws_vpc_security_group_ingress_rule" "endpoints" {
  for_each = toset(flatten([for vpc in data.aws_vpc.this : vpc.cidr_block_associations[*].cidr_block]))

  security_group_id = aws_security_group.endpoints[0].id
  description       = "The network"
  cidr_ipv4         = each.key
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_endpoint" "interface" {
  for_each = local.endpoint_services

  vpc_id              = var.platform.vpc_id
  service_name        = "com.amazonaws.${data.aws_region.current.id}.${each.key}"
  vpc_endpoint_type   = "Interface"
  subnet_ids          = var.platform.subnet_ids
  security_group_ids  = [aws_security_group.endpoints[0].id]
  private_dns_enabled = true

  tags = { Name = "${var.platform.name}-${each.key}" }
}

resource "aws_vpc_endpoint" "s3" {
  count = local.has_endpoints ? 1 : 0

  vpc_id            = var.platform.vpc_id
  service_name      = "com.amazonaws.${data.aws_region.current.id}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = var.platform.endpoints.route_table_ids

  tags = { Name = "${var.platform.name}-s3" }
}
