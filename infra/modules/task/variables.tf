variable "name" {
  description = "Name of the task, and beginning of the names of its roles."
  type        = string
}

variable "command" {
  description = "Arguments of `gristmill`."
  type        = list(string)
}

variable "image" {
  description = "The image, with a tag that does not move or a digest."
  type        = string

  validation {
    condition     = can(regex("(:|@sha256:)[A-Za-z0-9_.-]+$", var.image)) && !endswith(var.image, ":latest")
    error_message = "Name a tag that does not move, or a digest: with `latest` nobody knows what runs."
  }
}

variable "queue" {
  description = "Address of the queues, without a secret in it; null: it is in `queue_secret_arn`."
  type        = string
}

variable "queue_secret_arn" {
  description = "Secret that holds the address of the queues, with the password of the broker."
  type        = string
}

variable "has_queue_secret" {
  description = "Whether there is such a secret. It is known earlier than its ARN."
  type        = bool
}

variable "store" {
  description = "URL of the store."
  type        = string
}

variable "variables" {
  description = "Environment variables besides those of every role."
  type        = map(string)
  default     = {}
}

variable "policy_arn" {
  description = "What the role may do."
  type        = string
}

variable "kms_key_arns" {
  description = "Keys of the secret."
  type        = list(string)
  default     = []
}

variable "log_group" {
  description = "Where stdout and stderr go."
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
  description = "Disk of a Fargate task, for environments, snapshots and side inputs; null: the 20 GiB that every task has."
  type        = number
  default     = null
}

variable "gpus" {
  description = "GPUs of a task; such a task runs on EC2."
  type        = number
  default     = 0
}

variable "architecture" {
  description = "Of the processor: X86_64 or ARM64."
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
