# A platform and a target for trials: SQS, in the default network of the account. When idle, one small reducer is most of the
# cost; its public address, its requests, alarms and metrics, and stored images, logs and objects are the rest: infra/COSTS.md.
# `terraform destroy` removes everything.

provider "aws" {
  region = var.region

  default_tags {
    tags = merge({ Application = "gristmill", Target = local.name }, var.tags)
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

locals {
  name = try(var.target.name, "gristmill-dev")

  given          = { for name, value in merge({ target = var.target }, var.target, [for name, value in var.target : { for field, inner in value : "${name}.${field}" => inner } if can(keys(value))]...) : name => keys(value) if can(keys(value)) }
  unknown_fields = flatten([for name, fields in local.given : formatlist("${name}.%s", setsubtract(fields, lookup(module.target.fields, name, fields)))])
}

module "platform" {
  source = "../../modules/platform"

  platform = {
    name                     = local.name
    vpc_id                   = data.aws_vpc.default.id
    subnet_ids               = data.aws_subnets.default.ids
    has_own_key              = false
    images_kept              = 5
    container_insights       = false
    force_destroy            = true
    permissions_boundary_arn = try(var.target.permissions_boundary_arn, null)
  }
}

module "target" {
  source = "../../modules/target"

  platform  = module.platform.platform
  image_tag = var.image_tag
  target = merge(
    {
      name             = local.name
      bucket           = "${local.name}-${data.aws_caller_identity.current.account_id}"
      assign_public_ip = true
      job_days         = 30
      log_days         = 14
      force_destroy    = true
    },
    var.target,
    {
      workers = { for name, pool in try(var.target.workers, { cpu = {} }) : name => merge({ cpu = 2048, memory = 8192, max = 4, on_demand_floor = 0 }, pool) }
      reducer = merge({ count = 1, cpu = 512, memory = 1024 }, try(var.target.reducer, {}))
    },
  )
}
