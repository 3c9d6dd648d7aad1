variable "name" {
  description = "Name of the service, and beginning of the names of its roles."
  type        = string
}

variable "cluster" {
  description = "The ECS cluster."
  type = object({
    arn  = string
    name = string
  })
}

variable "capacity" {
  description = "Capacity providers, with the tasks that each runs at least and its share of the others."
  type = list(object({
    provider = string
    base     = number
    weight   = number
  }))
}

variable "image" {
  description = "The image, with a tag that does not move or a digest."
  type        = string
}

variable "queue" {
  description = "Address of the queues, without a secret in it; null: it is in `queue_secret_arn`."
  type        = string
}

variable "queue_secret_arn" {
  description = "Secret that holds the address of the queues, with the password of the broker."
  type        = string
  default     = null
}

variable "has_queue_secret" {
  description = "Whether there is such a secret. It is known earlier than its ARN."
  type        = bool
  default     = false
}

variable "store" {
  description = "URL of the store."
  type        = string
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

variable "subnet_ids" {
  description = "Subnets of the tasks."
  type        = list(string)

  validation {
    condition     = length(var.subnet_ids) > 0
    error_message = "Name at least one subnet."
  }
}

variable "security_group_ids" {
  description = "Security groups of the tasks."
  type        = list(string)
}

variable "assign_public_ip" {
  description = "Whether tasks have public addresses: the way to AWS in a subnet without NAT and endpoints. Nobody can connect to them."
  type        = bool
  default     = false
}

variable "cpu" {
  description = "Processor units of a worker; 1024 are one core."
  type        = number
  default     = 2048
}

variable "memory" {
  description = "Memory of a worker in MiB."
  type        = number
  default     = 8192
}

variable "disk_gib" {
  description = "Disk of a worker, for environments, snapshots and side inputs; null: the 20 GiB that every Fargate task has."
  type        = number
  default     = null

  validation {
    condition     = var.disk_gib == null || try(var.disk_gib >= 21 && var.disk_gib <= 200, false)
    error_message = "From 21 to 200."
  }
}

variable "gpus" {
  description = "GPUs of a worker; such workers need capacity with GPUs."
  type        = number
  default     = 0
}

variable "architecture" {
  description = "Of the processor: X86_64 or ARM64."
  type        = string
  default     = "X86_64"

  validation {
    condition     = contains(["X86_64", "ARM64"], var.architecture)
    error_message = "X86_64 or ARM64."
  }
}

variable "lease_seconds" {
  description = "How long a mini-batch stays with a worker that gives no sign of life."
  type        = number
  default     = 30

  validation {
    condition     = var.lease_seconds >= 10 && var.lease_seconds <= 600
    error_message = "From 10 to 600."
  }
}

variable "stop_seconds" {
  description = "Time between SIGTERM and SIGKILL; what runs may take 20 seconds less to end. ECS allows 120."
  type        = number
  default     = 120

  validation {
    condition     = var.stop_seconds >= 30 && var.stop_seconds <= 120
    error_message = "From 30 to 120."
  }
}

variable "workers_min" {
  description = "Workers that are there without anything to do. With 1, the first job of a quiet day does not wait for a task to start."
  type        = number
  default     = 0

  validation {
    condition     = var.workers_min >= 0
    error_message = "Not negative."
  }
}

variable "workers_max" {
  description = "The most workers."
  type        = number
  default     = 20

  validation {
    condition     = var.workers_max >= max(1, var.workers_min) && floor(var.workers_max) == var.workers_max
    error_message = "A whole number, at least 1 and at least workers_min."
  }
}

variable "backlog_per_worker" {
  description = "Mini-batches that are worth a worker: what one does in the minutes that a job may take."
  type        = number
  default     = 100

  validation {
    condition     = var.backlog_per_worker >= 1 && floor(var.backlog_per_worker) == var.backlog_per_worker
    error_message = "A whole number, at least 1."
  }
}

variable "idle_minutes" {
  description = "Minutes without anything to do until workers are stopped."
  type        = number
  default     = 10

  validation {
    condition     = var.idle_minutes >= 2 && var.idle_minutes <= 60
    error_message = "From 2 to 60."
  }
}

variable "backlog_metrics" {
  description = "CloudWatch metrics whose sum is the backlog, what is leased included."
  type = list(object({
    namespace  = string
    name       = string
    statistic  = string
    dimensions = map(string)
  }))

  validation {
    condition     = length(var.backlog_metrics) > 0 && length(var.backlog_metrics) <= 9
    error_message = "1 to 9 metrics."
  }
}
