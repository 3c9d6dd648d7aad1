# A production target on a platform that teams share (environments/platform): spot workers with an on-demand minimum, two
# reducers. Queues in SQS, or with `broker = "rabbitmq"` in Amazon MQ.

provider "aws" {
  region = var.region

  default_tags {
    tags = merge({ Application = "gristmill", Target = var.name }, var.tags)
  }
}

data "aws_ssm_parameter" "platform" {
  name            = "/gristmill/platforms/${var.platform}"
  with_decryption = false
}

locals {
  platform = jsondecode(data.aws_ssm_parameter.platform.insecure_value)
}

module "target" {
  source = "../../modules/target"

  name                     = var.name
  platform                 = local.platform
  bucket                   = var.bucket
  image_tag                = var.image_tag
  images                   = var.images
  environment              = var.environment
  broker                   = var.broker
  rabbitmq                 = var.rabbitmq
  broker_password          = var.broker_password
  inputs                   = var.inputs
  outputs                  = var.outputs
  input_kms_key_arns       = var.input_kms_key_arns
  output_kms_key_arns      = var.output_kms_key_arns
  job_days                 = var.job_days
  worker                   = var.worker
  reducer                  = var.reducer
  portal                   = var.portal
  scraper_cidr_blocks      = var.scraper_cidr_blocks
  alarm_emails             = var.alarm_emails
  alarm_thresholds         = var.alarm_thresholds
  runbooks                 = var.runbooks
  permissions_boundary_arn = var.permissions_boundary_arn
}

locals {
  given          = { worker = var.worker, reducer = var.reducer, rabbitmq = var.rabbitmq, portal = var.portal, images = var.images, alarm_thresholds = var.alarm_thresholds }
  unknown_fields = flatten([for name, given in local.given : [for field in setsubtract(try(keys(given), []), module.target.fields[name]) : "${name}.${field}"]])
}
