# The rights of a person or pipeline that runs `terraform apply` or scripts/deploy: infra/README.md, "Who may deploy".
#
#   terraform init && terraform apply      with this in terraform.tfvars, by an administrator of the account
#
#   deployer = {
#     names                    = ["team-a"]
#     buckets                  = ["team-a-gristmill"]
#     state                    = "our-states/team-a.tfstate*"
#     permissions_boundary_arn = "arn:…"
#   }

terraform {
  required_version = ">= 1.11.0, < 2.0.0"

  required_providers {
    aws = { source = "hashicorp/aws", version = ">= 5.100.0, < 7.0.0" }
  }
}

variable "region" {
  description = "Any AWS region: the policies hold for all."
  type        = string
  default     = "eu-central-1"
}

variable "deployer" {
  description = "Settings of ../../modules/deployer/variables.tf."
  type        = any
}

provider "aws" {
  region = var.region

  default_tags {
    tags = { Application = "gristmill" }
  }
}

module "deployer" {
  source = "../../modules/deployer"

  deployer = var.deployer
}

output "actions" {
  description = "The actions by type of resource, or by what else needs them."
  value       = module.deployer.actions
}

output "policy_arns" {
  description = "The policies: attach all of them to the role of the person or pipeline."
  value       = module.deployer.policy_arns

  # Terraform itself ignores unknown fields of objects.
  precondition {
    condition     = length(setsubtract(keys(var.deployer), module.deployer.fields)) == 0
    error_message = "Unknown fields: ${join(", ", setsubtract(keys(var.deployer), module.deployer.fields))}."
  }
}
