# The queues, the bucket and the policies of a target in the LocalStack that `scripts/up` starts, with the same modules as
# for AWS. Tasks do not run here: LocalStack without a licence has no ECS.
#
#   terraform init && terraform apply
#   terraform output -json | gristmill target import
#   gristmill doctor --target local-aws

terraform {
  required_version = ">= 1.11.0, < 2.0.0"

  required_providers {
    aws = { source = "hashicorp/aws", version = ">= 5.100.0, < 7.0.0" }
  }
}

variable "endpoint" {
  description = "Address of LocalStack."
  type        = string
  default     = "http://127.0.0.1:4566"

  validation {
    condition     = can(regex("^http://(127\\.0\\.0\\.1|localhost):[0-9]+$", var.endpoint))
    error_message = "An address of this machine, such as http://127.0.0.1:4566."
  }
}

variable "name" {
  description = "Name of the target."
  type        = string
  default     = "local-aws"
}

provider "aws" {
  region                      = "us-east-1"
  access_key                  = "test"
  secret_key                  = "test"
  s3_use_path_style           = true
  skip_credentials_validation = true
  skip_metadata_api_check     = true

  endpoints {
    iam = var.endpoint
    s3  = var.endpoint
    sqs = var.endpoint
    sts = var.endpoint
  }
}

module "queue" {
  source = "../../modules/queue"

  prefix           = var.name
  allow_plain_http = true
}

module "store" {
  source = "../../modules/store"

  bucket           = var.name
  prefix           = "jobs"
  force_destroy    = true
  allow_plain_http = true
}

module "access" {
  source = "../../modules/access"

  name       = var.name
  bucket     = module.store.bucket
  prefix     = module.store.prefix
  queue_arns = module.queue.arns
  inputs     = ["${var.name}/inputs"]
  outputs    = ["${var.name}/outputs"]
}

output "target" {
  description = "The target: `terraform output -json | gristmill target import` writes it to gristmill.toml."
  value = {
    name     = var.name
    queue    = module.queue.address
    store    = module.store.url
    region   = "us-east-1"
    endpoint = var.endpoint
  }
}

output "policies" {
  description = "Policy of each role."
  value       = module.access.policies
}
