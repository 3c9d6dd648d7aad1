variable "name" {
  description = "Name of the target, and prefix of all resource names."
  type        = string
  default     = "gristmill-dev"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,18}[a-z0-9]$", var.name))
    error_message = "3 to 20 lower-case letters, digits and `-`."
  }
}

variable "region" {
  description = "AWS region."
  type        = string
  default     = "eu-central-1"

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "A region such as eu-central-1."
  }
}

variable "bucket" {
  description = "Name of the bucket; null: the target's name and the account number."
  type        = string
  default     = null
}

variable "image_tag" {
  description = "Tag of both images in the repositories of this environment (output `repositories`)."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$", var.image_tag)) && var.image_tag != "latest"
    error_message = "A tag that never moves, such as a version or a commit."
  }
}

variable "inputs" {
  description = "Locations that jobs may read in addition to inputs/ of the bucket, as BUCKET or BUCKET/PREFIX."
  type        = list(string)
  default     = []
}

variable "outputs" {
  description = "Locations that jobs may write outputs to in addition to outputs/ of the bucket, as BUCKET or BUCKET/PREFIX."
  type        = list(string)
  default     = []
}

variable "workers_max" {
  description = "Maximum number of workers."
  type        = number
  default     = 4
}

variable "backlog_per_worker" {
  description = "Mini-batches for each worker."
  type        = number
  default     = 20
}

variable "portal" {
  description = "The portal, which shows the jobs in a browser: see `portal` of the module `target`; null: none."
  type        = any
  default     = null

  validation {
    condition = var.portal == null || length(setsubtract(try(keys(var.portal), []), [
      "token_secret_arn", "trust_header", "client_security_group_ids", "client_cidr_blocks", "target_group_arn", "hosts",
      "read_only", "cpu", "memory", "architecture",
    ])) == 0
    error_message = "`portal` has token_secret_arn, trust_header, client_security_group_ids, client_cidr_blocks, target_group_arn, hosts, read_only, cpu, memory and architecture."
  }
}

variable "alarm_emails" {
  description = "Mail addresses for alarms."
  type        = list(string)
  default     = []
}

variable "tags" {
  description = "Additional tags of all resources."
  type        = map(string)
  default     = {}
}

variable "permissions_boundary_arn" {
  description = "Permissions boundary of all roles, if the account requires one; null: none."
  type        = string
  default     = null
}
