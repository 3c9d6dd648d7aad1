# Arrays of workers on AWS Batch for an existing target: infra/batch/README.md.
#
#   terraform init && terraform apply      with the variables below in terraform.tfvars

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

variable "target" {
  description = "Output `target` of the target."
  type        = object({ queue = string, store = string })
}

variable "policy_arns" {
  description = "Output `policy_arns` of the target."
  type        = object({ worker = string, reducer = string })
}

variable "images" {
  description = "Images of `worker` and `reducer`, with registry and tag."
  type        = object({ worker = string, reducer = string })
}

variable "subnet_ids" {
  description = "Private subnets of the machines, with a route to AWS."
  type        = list(string)
}

variable "security_group_ids" {
  description = "Security groups of the machines."
  type        = list(string)
}

provider "aws" {
  region = var.region
}

module "batch" {
  source = "../../modules/batch"

  queue              = var.target.queue
  store              = var.target.store
  policy_arns        = var.policy_arns
  images             = var.images
  subnet_ids         = var.subnet_ids
  security_group_ids = var.security_group_ids
}

output "job_queue" {
  description = "The job queue."
  value       = module.batch.job_queue
}
