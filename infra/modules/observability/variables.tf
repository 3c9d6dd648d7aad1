variable "name" {
  description = "Name of the target and its dashboard, and prefix of the alarm names."
  type        = string
}

variable "metrics" {
  description = "CloudWatch metrics of the queues: output `metrics` of the module `queue` or `rabbitmq`."
  type = object({
    backlog       = list(object({ namespace = string, name = string, statistic = string, dimensions = map(string) }))
    committed     = object({ namespace = string, name = string, statistic = string, dimensions = map(string) })
    dead_letters  = object({ namespace = string, name = string, statistic = string, dimensions = map(string) })
    oldest_task   = optional(object({ namespace = string, name = string, statistic = string, dimensions = map(string) }))
    oldest_result = optional(object({ namespace = string, name = string, statistic = string, dimensions = map(string) }))
  })
}

variable "has_ages" {
  description = "Whether `metrics` has the ages of the oldest task and result: known earlier than their values."
  type        = bool
  default     = true
}

variable "has_container_insights" {
  description = "Whether Container Insights counts the tasks of the cluster."
  type        = bool
}

variable "cluster" {
  description = "The ECS cluster."
  type        = object({ arn = string, name = string })
}

variable "autoscaling_group" {
  description = "Auto scaling group of the instances that workers run on; null: they run on Fargate."
  type        = string
  default     = null
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

variable "log_days" {
  description = "Retention of task events, in days."
  type        = number
  default     = 365
}

variable "emails" {
  description = "Mail addresses for alarms. AWS asks each address for confirmation first."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for address in var.emails : can(regex("^[^@ ]+@[^@ ]+$", address))])
    error_message = "Mail addresses."
  }
}

variable "thresholds" {
  description = <<-TEXT
    Alarm thresholds: minutes that a mini-batch or a result may wait; minutes with work but without a result, more than the
    longest mini-batch runs; number of dead letters; percent of workers that may be missing, and for how many minutes; failed
    placements in 15 minutes; tasks that lose their spot capacity in an hour.
  TEXT
  type = object({
    oldest_task_minutes   = optional(number, 60)
    oldest_result_minutes = optional(number, 15)
    no_progress_minutes   = optional(number, 30)
    dead_letters          = optional(number, 0)
    missing_percent       = optional(number, 20)
    missing_minutes       = optional(number, 15)
    placement_failures    = optional(number, 3)
    reclaimed_tasks       = optional(number, 20)
  })
  default  = {}
  nullable = false

  validation {
    condition     = var.thresholds.oldest_task_minutes >= 5 && var.thresholds.oldest_result_minutes >= 5
    error_message = "At least 5 minutes: starting workers takes some."
  }

  validation {
    # CloudWatch looks back a day at most.
    condition     = var.thresholds.no_progress_minutes >= 10 && var.thresholds.no_progress_minutes <= 1440 && var.thresholds.missing_minutes >= 5 && var.thresholds.missing_minutes <= 1440
    error_message = "`no_progress_minutes` is 10 to 1440, `missing_minutes` 5 to 1440."
  }
}

variable "runbooks" {
  description = "URL of your runbooks, for the alarm descriptions; null: infra/RUNBOOKS.md of the project."
  type        = string
  default     = null
}

variable "kms_key_arn" {
  description = "Key that encrypts alarms and events; CloudWatch needs permission to use it. null: none."
  type        = string
  default     = null
}
