# Resources that the targets of an account share: cluster, image repositories, key, GPU instances, AWS endpoints. The state
# contains no secrets. Targets (environments/prod) find the platform by name.

provider "aws" {
  region = var.region

  default_tags {
    tags = merge({ Application = "gristmill", Platform = var.name }, var.tags)
  }
}

module "platform" {
  source = "../../modules/platform"

  name                     = var.name
  vpc_id                   = var.vpc_id
  subnet_ids               = var.subnet_ids
  endpoints                = var.endpoints
  kms_key_arn              = var.kms_key_arn
  container_insights       = var.container_insights
  permissions_boundary_arn = var.permissions_boundary_arn
  gpu                      = var.gpu
}

# Targets read this parameter instead of the platform's state.
resource "aws_ssm_parameter" "platform" {
  # checkov:skip=CKV_AWS_337: names and ARNs are not secret; creators of targets must be able to read them.
  # checkov:skip=CKV2_AWS_34: names and ARNs are not secret; creators of targets must be able to read them.
  name           = "/gristmill/platforms/${var.name}"
  description    = "Platform ${var.name}: data for its targets"
  type           = "String"
  insecure_value = jsonencode(module.platform.platform)
}
