# A platform and a target for trials: SQS, in the default network of the account. When idle, only one small reducer costs
# money. `terraform destroy` removes everything.

provider "aws" {
  region = var.region

  default_tags {
    tags = merge({ Application = "gristmill", Target = var.name }, var.tags)
  }
}

data "aws_caller_identity" "current" {}

data "aws_vpc" "default" {
  default = true
}

data "aws_subnets" "default" {
  filter {
    name   = "vpc-id"
    values = [data.aws_vpc.default.id]
  }
}

module "platform" {
  source = "../../modules/platform"

  name                     = var.name
  vpc_id                   = data.aws_vpc.default.id
  subnet_ids               = data.aws_subnets.default.ids
  has_own_key              = false
  images_kept              = 5
  container_insights       = false
  force_destroy            = true
  permissions_boundary_arn = var.permissions_boundary_arn
}

module "target" {
  source = "../../modules/target"

  name                     = var.name
  platform                 = module.platform.platform
  bucket                   = coalesce(var.bucket, "${var.name}-${data.aws_caller_identity.current.account_id}")
  image_tag                = var.image_tag
  assign_public_ip         = true
  inputs                   = var.inputs
  outputs                  = var.outputs
  job_days                 = 30
  log_days                 = 14
  force_destroy            = true
  portal                   = var.portal
  alarm_emails             = var.alarm_emails
  permissions_boundary_arn = var.permissions_boundary_arn

  worker = {
    cpu             = 2048
    memory          = 8192
    max             = var.workers_max
    backlog_each    = var.backlog_per_worker
    on_demand_floor = 0
  }
  reducer = {
    count  = 1
    cpu    = 512
    memory = 1024
  }
}

locals {
  given          = { portal = var.portal }
  unknown_fields = flatten([for name, given in local.given : [for field in setsubtract(try(keys(given), []), module.target.fields[name]) : "${name}.${field}"]])
}
