# Resources that the targets of an account share: cluster, image repositories, key, GPU instances, AWS endpoints. The state
# contains no secrets. Targets (environments/prod) find the platform by name.

provider "aws" {
  region = var.region

  default_tags {
    tags = merge({ Application = "gristmill", Platform = var.platform.name }, var.tags)
  }
}

module "platform" {
  source = "../../modules/platform"

  platform = var.platform
}

locals {
  given          = { for name, value in merge({ platform = var.platform }, var.platform, [for name, value in var.platform : { for field, inner in value : "${name}.${field}" => inner } if can(keys(value))]...) : name => keys(value) if can(keys(value)) }
  unknown_fields = flatten([for name, fields in local.given : formatlist("${name}.%s", setsubtract(fields, lookup(module.platform.fields, name, fields)))])
}

# Targets read this parameter instead of the platform's state.
resource "aws_ssm_parameter" "platform" {
  # checkov:skip=CKV_AWS_337: names and ARNs are not secret; creators of targets must be able to read them.
  # checkov:skip=CKV2_AWS_34: names and ARNs are not secret; creators of targets must be able to read them.
  name           = "/gristmill/platforms/${var.platform.name}"
  description    = "Platform ${var.platform.name}: data for its targets"
  type           = "String"
  insecure_value = jsonencode(module.platform.platform)
}
