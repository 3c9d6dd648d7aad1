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

variable "queue" {
  description = "Address of the queues, if it contains no secret; null: `queue_secret_arn` has it."
  type        = string
}

variable "queue_secret_arn" {
  description = "Secret whose field `address` is the address of the queues, with user and password of the broker."
  type        = string
  default     = null
}

variable "has_queue_secret" {
  description = "Whether there is such a secret: known earlier than its ARN."
  type        = bool
  default     = false
}

variable "token_secret_arn" {
  description = "Secret whose value is the token of the portal."
  type        = string
  default     = null
}

variable "has_token_secret" {
  description = "Whether there is such a secret: known earlier than its ARN."
  type        = bool
  default     = false
}

variable "store" {
  description = "URL of the store."
  type        = string
}

variable "variables" {
  description = "Environment variables in addition to those of every role."
  type        = map(string)
  default     = {}
}

variable "policy_arn" {
  description = "Policy of the role."
  type        = string
}

variable "kms_key_arns" {
  description = "Keys of the secrets."
  type        = list(string)
  default     = []
}

variable "permissions_boundary_arn" {
  description = "Permissions boundary of the two roles of the task; null: none."
  type        = string
  default     = null
}

variable "log_group" {
  description = "Log group of stdout and stderr."
  type        = string
}

variable "cpu" {
  description = "Processor units; 1024 are one core."
  type        = number
}

variable "memory" {
  description = "Memory in MiB."
  type        = number
}

variable "disk_gib" {
  description = "Disk of a Fargate task, for environments, snapshots and side inputs; null: the 20 GiB of every task."
  type        = number
  default     = null
}

variable "gpus" {
  description = "GPUs of a task; with GPUs it runs on EC2."
  type        = number
  default     = 0
}

variable "architecture" {
  description = "Processor architecture: X86_64 or ARM64."
  type        = string
  default     = "X86_64"
}

variable "stop_seconds" {
  description = "Time between SIGTERM and SIGKILL; ECS allows 120."
  type        = number
  default     = 120

  validation {
    condition     = var.stop_seconds >= 30 && var.stop_seconds <= 120
    error_message = "From 30 to 120."
  }
}
