# A production target on a platform that teams share (environments/platform): spot workers with an on-demand minimum, two
# reducers. Queues in SQS, or with `broker = "rabbitmq"` in Amazon MQ.

provider "aws" {
  region = var.region

  default_tags {
    tags = merge({ Application = "gristmill", Target = var.target.name }, var.tags)
  }
}

data "aws_ssm_parameter" "platform" {
  name            = "/gristmill/platforms/${var.platform}"
  with_decryption = false
}

locals {
  platform = jsondecode(data.aws_ssm_parameter.platform.insecure_value)

  given          = { for name, value in merge({ target = var.target }, var.target, [for name, value in var.target : { for field, inner in value : "${name}.${field}" => inner } if can(keys(value))]...) : name => keys(value) if can(keys(value)) }
  unknown_fields = flatten([for name, fields in local.given : formatlist("${name}.%s", setsubtract(fields, lookup(module.target.fields, name, fields)))])
}

module "target" {
  source = "../../modules/target"

  platform        = local.platform
  image_tag       = var.image_tag
  target          = merge({ workers = { cpu = { disk_gib = 50 } } }, var.target)
  broker_password = var.broker_password
}
