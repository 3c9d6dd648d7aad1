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

# Principals of this account, and resources of this account and of others that the caller names; some actions have no resource.
# https://github.com/aws-samples/data-perimeter-policy-examples/tree/main/vpc_endpoint_policies
data "aws_iam_policy_document" "endpoint" {
  # checkov:skip=CKV_AWS_1: the policy of an endpoint limits permissions, and grants none.
  # checkov:skip=CKV_AWS_49: the policy of an endpoint limits permissions, and grants none.
  # checkov:skip=CKV_AWS_109: the policy of an endpoint limits permissions, and grants none.
  # checkov:skip=CKV_AWS_111: the policy of an endpoint limits permissions, and grants none.
  # checkov:skip=CKV_AWS_356: the conditions limit the resources.
  statement {
    sid       = "OwnAccount"
    actions   = ["*"]
    resources = ["*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:PrincipalAccount"
      values   = [data.aws_caller_identity.current.account_id]
    }

    condition {
      test     = "StringEqualsIfExists"
      variable = "aws:ResourceAccount"
      values   = concat([data.aws_caller_identity.current.account_id], try(var.platform.endpoints.account_ids, []))
    }
  }
}

# ECR keeps the layers of images in a bucket of AWS, and gives its clients signed addresses.
# https://docs.aws.amazon.com/AmazonECR/latest/userguide/vpc-endpoints.html
data "aws_iam_policy_document" "s3_endpoint" {
  source_policy_documents = [data.aws_iam_policy_document.endpoint.json]

  statement {
    sid       = "ImageLayers"
    actions   = ["s3:GetObject"]
    resources = ["arn:${data.aws_partition.current.partition}:s3:::prod-${data.aws_region.current.id}-starport-layer-bucket/*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }
  }
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
  policy              = data.aws_iam_policy_document.endpoint.json

  tags = { Name = "${var.platform.name}-${each.key}" }
}

resource "aws_vpc_endpoint" "s3" {
  count = local.has_endpoints ? 1 : 0

  vpc_id            = var.platform.vpc_id
  service_name      = "com.amazonaws.${data.aws_region.current.id}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = var.platform.endpoints.route_table_ids
  policy            = data.aws_iam_policy_document.s3_endpoint.json

  tags = { Name = "${var.platform.name}-s3" }
}
