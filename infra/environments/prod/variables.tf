variable "name" {
  description = "Name of the target, and prefix of all resource names."
  type        = string

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
  description = "Name of the bucket."
  type        = string
}

variable "image_tag" {
  description = "Tag of both images in the repositories of the platform (output `repositories`). Workers with GPUs use TAG-cuda."
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

variable "job_days" {
  description = "Days until the objects of a job expire."
  type        = number
  default     = 90
}

variable "platform" {
  description = "Name of the platform (environments/platform)."
  type        = string
  default     = "gristmill"
}

variable "tags" {
  description = "Additional tags of all resources."
  type        = map(string)
  default     = {}
}

variable "images" {
  description = "Your own images, `worker`, `reducer` and `portal`, with registry and tag, instead of those of the platform."
  type        = map(string)
  default     = {}

  validation {
    condition     = length(setsubtract(keys(var.images), ["worker", "reducer", "portal"])) == 0
    error_message = "`images` has worker, reducer and portal."
  }
}

variable "broker" {
  description = "Kind of queues: `sqs`, or `rabbitmq` for mini-batches of more than 12 hours."
  type        = string
  default     = "sqs"
}

variable "rabbitmq" {
  description = "The broker, if it is RabbitMQ: see `rabbitmq` of the module `target`. Set the clients other than the tasks, and `lease_seconds`."
  type        = any
  default     = {}

  validation {
    condition     = length(setsubtract(keys(var.rabbitmq), ["instance_type", "engine_version", "is_cluster", "lease_seconds", "client_security_group_ids", "client_cidr_blocks"])) == 0
    error_message = "`rabbitmq` has instance_type, engine_version, is_cluster, lease_seconds, client_security_group_ids and client_cidr_blocks."
  }
}

variable "broker_password" {
  description = "Initial password of the broker's administrator: pass it as TF_VAR_broker_password, never in a file. scripts/broker-users replaces it."
  type        = string
  default     = null
  sensitive   = true
}

variable "input_kms_key_arns" {
  description = "Keys that encrypt `inputs`."
  type        = list(string)
  default     = []
}

variable "output_kms_key_arns" {
  description = "Keys that encrypt `outputs`."
  type        = list(string)
  default     = []
}

variable "worker" {
  description = "Size and number of the workers: see `worker` of the module `target`. With `gpus` they run on the platform's instances."
  type        = any
  default     = { disk_gib = 50 }

  validation {
    condition = length(setsubtract(keys(var.worker), [
      "cpu", "memory", "disk_gib", "gpus", "architecture", "min", "max", "backlog_each", "idle_minutes", "on_demand_floor",
      "on_demand_percent", "lease_seconds", "stop_seconds",
    ])) == 0
    error_message = "`worker` has cpu, memory, disk_gib, gpus, architecture, min, max, backlog_each, idle_minutes, on_demand_floor, on_demand_percent, lease_seconds and stop_seconds."
  }
}

variable "reducer" {
  description = "Size and number of the reducers: see `reducer` of the module `target`."
  type        = any
  default     = {}

  validation {
    condition     = length(setsubtract(keys(var.reducer), ["count", "cpu", "memory", "disk_gib", "architecture"])) == 0
    error_message = "`reducer` has count, cpu, memory, disk_gib and architecture."
  }
}

variable "scraper_cidr_blocks" {
  description = "Address ranges that may scrape the tasks' metrics, port 9464."
  type        = list(string)
  default     = []
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

variable "alarm_thresholds" {
  description = "Alarm thresholds: see `thresholds` of the module `observability`."
  type        = any
  default     = {}

  validation {
    condition = length(setsubtract(keys(var.alarm_thresholds), [
      "oldest_task_minutes", "oldest_result_minutes", "no_progress_minutes", "dead_letters", "missing_percent",
      "missing_minutes", "placement_failures", "reclaimed_tasks",
    ])) == 0
    error_message = "`alarm_thresholds` has oldest_task_minutes, oldest_result_minutes, no_progress_minutes, dead_letters, missing_percent, missing_minutes, placement_failures and reclaimed_tasks."
  }
}

variable "runbooks" {
  description = "URL of your runbooks, for the alarm descriptions; null: infra/RUNBOOKS.md of the project."
  type        = string
  default     = null
}

variable "permissions_boundary_arn" {
  description = "Permissions boundary of all roles, if the account requires one; null: none."
  type        = string
  default     = null
}
