# Arrays of workers on AWS Batch for an existing target: infra/batch/README.md.
#
#   terraform init && terraform apply      with this in terraform.tfvars
#
#   region = "eu-central-1"
#   tags   = { CostCenter = "1234" }
#   batch = {
#     queue              = "sqs://team-a"                 # `queue` and `store` of output `target`, and output `policy_arns`
#     store              = "s3://team-a-gristmill/team-a"
#     policy_arns        = { worker = "arn:…", reducer = "arn:…" }
#     images             = { worker = "…/gristmill-worker:0.1.0", reducer = "…/gristmill:0.1.0" }
#     subnet_ids         = ["subnet-…"]
#     security_group_ids = ["sg-…"]
#   }

terraform {
  required_version = ">= 1.11.0, < 2.0.0"

  required_providers {
    aws = { source = "hashicorp/aws", version = ">= 5.100.0, < 7.0.0" }
  }
}

variable "region" {
  description = "AWS region of the target."
  type        = string
}

variable "tags" {
  description = "Additional tags of all resources."
  type        = map(string)
  default     = {}
}

variable "batch" {
  description = "Settings of ../../modules/batch/variables.tf."
  type        = any
}

provider "aws" {
  region = var.region

  default_tags {
    tags = merge({ Application = "gristmill" }, var.tags)
  }
}

module "batch" {
  source = "../../modules/batch"

  batch = var.batch
}

output "job_queue" {
  description = "The job queue."
  value       = module.batch.job_queue

  # Terraform itself ignores unknown fields of objects.
  precondition {
    condition     = length(setsubtract(keys(var.batch), module.batch.fields)) == 0
    error_message = "Unknown fields: ${join(", ", setsubtract(keys(var.batch), module.batch.fields))}."
  }
}
