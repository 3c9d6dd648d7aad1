# Where tasks run: ECS cluster, image repositories, log group, security group, and the capacity that tasks ask for.

locals {
  images = toset(["gristmill", "gristmill-worker"])
}

resource "aws_ecs_cluster" "this" {
  # checkov:skip=CKV_AWS_65: on by default; off where a fleet is only tried (environments/dev), because they cost.
  name = var.name

  setting {
    name  = "containerInsights"
    value = var.container_insights ? "enabled" : "disabled"
  }
}

resource "aws_ecs_cluster_capacity_providers" "this" {
  cluster_name       = aws_ecs_cluster.this.name
  capacity_providers = concat(["FARGATE", "FARGATE_SPOT"], aws_ecs_capacity_provider.gpu[*].name)
}

resource "aws_ecr_repository" "image" {
  for_each = local.images

  name                 = "${var.name}/${each.key}"
  image_tag_mutability = "IMMUTABLE"
  force_delete         = var.force_destroy

  encryption_configuration {
    encryption_type = var.kms_key_arn == null ? "AES256" : "KMS"
    kms_key         = var.kms_key_arn
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
      description  = "Keep the last ${var.images_kept} images."
      selection    = { tagStatus = "any", countType = "imageCountMoreThan", countNumber = var.images_kept }
      action       = { type = "expire" }
    }]
  })
}

resource "aws_cloudwatch_log_group" "this" {
  # checkov:skip=CKV_AWS_338: a year by default; two weeks where a fleet is only tried (environments/dev).
  name              = "/gristmill/${var.name}"
  retention_in_days = var.log_days
  kms_key_id        = var.kms_key_arn
}

# Nobody connects to a task, but who scrapes its metrics.
resource "aws_security_group" "tasks" {
  name        = "${var.name}-tasks"
  description = "Tasks of ${var.name}"
  vpc_id      = var.vpc_id

  tags = { Name = "${var.name}-tasks" }
}

resource "aws_vpc_security_group_egress_rule" "https" {
  security_group_id = aws_security_group.tasks.id
  description       = "AWS, and the package index of jobs that name a requirements file"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_ingress_rule" "metrics" {
  for_each = toset(var.scraper_cidr_blocks)

  security_group_id = aws_security_group.tasks.id
  description       = "Prometheus"
  cidr_ipv4         = each.key
  ip_protocol       = "tcp"
  from_port         = 9464
  to_port           = 9464
}
