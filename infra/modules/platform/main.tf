# Resources that the targets of an account share: ECS cluster, image repositories, key, GPU instances, and AWS endpoints in
# the network. It costs little by itself: none of it runs until a target has work.

locals {
  images       = toset(["gristmill", "gristmill-worker"])
  repositories = { for image, repository in aws_ecr_repository.image : image => repository.repository_url }
  kms_key_arn  = var.platform.has_own_key ? coalesce(var.platform.kms_key_arn, one(module.key[*].arn)) : null
}

# It encrypts all data of the platform, and of targets without a key of their own.
module "key" {
  source = "../key"
  count  = var.platform.has_own_key && var.platform.kms_key_arn == null ? 1 : 0

  name        = var.platform.name
  description = "Messages, objects, images and logs of the targets of ${var.platform.name}"
  log_groups  = "*"
}

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

data "aws_region" "current" {}

resource "aws_ecs_cluster" "this" {
  # checkov:skip=CKV_AWS_65: on by default; off for trials (environments/dev), because of the cost.
  name = var.platform.name

  setting {
    name  = "containerInsights"
    value = var.platform.container_insights ? "enabled" : "disabled"
  }
}

resource "aws_ecs_cluster_capacity_providers" "this" {
  cluster_name       = aws_ecs_cluster.this.name
  capacity_providers = concat(["FARGATE", "FARGATE_SPOT"], [for provider in aws_ecs_capacity_provider.gpu : provider.name])
}

resource "aws_ecr_repository" "image" {
  # checkov:skip=CKV_AWS_136: with a key of the account by default; without one for trials (environments/dev).
  for_each = local.images

  name                 = "${var.platform.name}/${each.key}"
  image_tag_mutability = "IMMUTABLE"
  force_delete         = var.platform.force_destroy

  encryption_configuration {
    encryption_type = var.platform.has_own_key ? "KMS" : "AES256"
    kms_key         = local.kms_key_arn
  }

  image_scanning_configuration {
    scan_on_push = true
  }
}

resource "aws_ecr_lifecycle_policy" "image" {
  for_each = local.images

  repository = aws_ecr_repository.image[each.key].name

  policy = jsonencode({
    rules = [{
      rulePriority = 1
      description  = "Keep the last ${var.platform.images_kept} images."
      selection    = { tagStatus = "any", countType = "imageCountMoreThan", countNumber = var.platform.images_kept }
      action       = { type = "expire" }
    }]
  })
}

# EventBridge writes ECS events about tasks into the log groups of the targets. An account can have ten such policies in a
# region, so this one covers all targets.
data "aws_iam_policy_document" "events" {
  statement {
    sid       = "WriteEvents"
    actions   = ["logs:CreateLogStream", "logs:PutLogEvents"]
    resources = ["arn:${data.aws_partition.current.partition}:logs:${data.aws_region.current.id}:${data.aws_caller_identity.current.account_id}:log-group:/aws/events/gristmill/*:*"]

    principals {
      type        = "Service"
      identifiers = ["events.amazonaws.com", "delivery.logs.amazonaws.com"]
    }
  }
}

resource "aws_cloudwatch_log_resource_policy" "events" {
  policy_name     = "${var.platform.name}-events"
  policy_document = data.aws_iam_policy_document.events.json
}
