variable "name" {
  description = "Name of the target, of its dashboard, and beginning of the names of its alarms."
  type        = string
}

variable "metrics" {
  description = "What CloudWatch knows of the queues."
  type = object({
    backlog = list(object({
      namespace  = string
      name       = string
      statistic  = string
      dimensions = map(string)
    }))
    committed = object({
      namespace  = string
      name       = string
      statistic  = string
      dimensions = map(string)
    })
    dead_letters = object({
      namespace  = string
      name       = string
      statistic  = string
      dimensions = map(string)
    })
    oldest_age = optional(object({
      namespace  = string
      name       = string
      statistic  = string
      dimensions = map(string)
    }))
  })
}

variable "has_oldest_age" {
  description = "Whether `metrics.oldest_age` is there. It is known earlier than its value."
  type        = bool
  default     = true
}

variable "cluster_name" {
  description = "The ECS cluster."
  type        = string
}

variable "worker_service_name" {
  description = "The ECS service of the workers."
  type        = string
}

variable "reducer_service_name" {
  description = "The ECS service of the reducers."
  type        = string
}

variable "log_group" {
  description = "Log group of all roles."
  type        = string
}

variable "alarm_emails" {
  description = "Who is told of alarms. Each address gets a mail first that asks whether it wants to be."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for address in var.alarm_emails : can(regex("^[^@ ]+@[^@ ]+$", address))])
    error_message = "Mail addresses."
  }
}

variable "oldest_task_minutes" {
  description = "Minutes that a mini-batch may wait."
  type        = number
  default     = 60

  validation {
    condition     = var.oldest_task_minutes >= 5
    error_message = "At least 5: starting workers takes some."
  }
}

variable "no_progress_minutes" {
  description = "Minutes without a result, although there is work. More than the longest run of a mini-batch."
  type        = number
  default     = 30

  validation {
    condition     = var.no_progress_minutes >= 10 && var.no_progress_minutes <= 1440
    error_message = "From 10 to 1440."
  }
}

variable "kms_key_arn" {
  description = "Key that encrypts alarms on their way, which CloudWatch must be allowed to use; null: none."
  type        = string
  default     = null
}
