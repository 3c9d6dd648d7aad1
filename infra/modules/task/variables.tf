variable "name" {
  description = "Name of the task, and prefix of its role names."
  type        = string
}

variable "command" {
  description = "Arguments of `gristmill`."
  type        = list(string)
}

variable "image" {
  description = "The image, with a tag that never moves or a digest."
  type        = string

  validation {
    condition     = can(regex("(:|@sha256:)[A-Za-z0-9_.-]+$", var.image)) && !endswith(var.image, ":latest")
    error_message = "Name a tag that never moves, or a digest: `latest` does not identify a version."
  }
}

variable "environment" {
  description = "Environment variables in addition to those of every role."
  type        = map(string)
}

variable "secrets" {
  description = "Environment variables whose values are secrets: their ARNs in Secrets Manager, with `:KEY::` behind it for one field."
  type        = map(string)
}

variable "size" {
  description = <<-TEXT
    `cpu` units (1024 are one core) and `memory` in MiB; `disk_gib` of a Fargate task, for environments, snapshots and side
    inputs (null: the 20 GiB of every task); with `gpus` it runs on EC2; `architecture`: X86_64 or ARM64; `stop_seconds` between
    SIGTERM and SIGKILL, of which ECS allows 120.
  TEXT
  type = object({
    cpu          = number
    memory       = number
    disk_gib     = optional(number)
    gpus         = optional(number, 0)
    architecture = string
    stop_seconds = number
  })
}

variable "policy_arn" {
  description = "Policy of the role."
  type        = string
}

variable "kms_key_arns" {
  description = "Keys of the secrets."
  type        = list(string)
}

variable "permissions_boundary_arn" {
  description = "Permissions boundary of the two roles of the task; null: none."
  type        = string
}

variable "log_group" {
  description = "Log group of stdout and stderr."
  type        = string
}
