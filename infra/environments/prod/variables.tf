variable "name" {
  description = "Name of the target, and prefix of all resource names."
  type        = string
}

variable "region" {
  description = "AWS region."
  type        = string
  default     = "eu-central-1"
}

variable "bucket" {
  description = "Name of the bucket."
  type        = string
}

variable "image_tag" {
  description = "Tag of both images in the repositories of the platform (output `repositories`). Workers with GPUs use TAG-cuda."
  type        = string
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

variable "environment" {
  description = "Environment variables of all roles, such as PIP_INDEX_URL for your package index, or settings of Gristmill."
  type        = map(string)
  default     = {}
}

variable "images" {
  description = "Your own images, `worker`, `reducer` and `portal`, with registry and tag, instead of those of the platform."
  type        = map(string)
  default     = {}
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
  description = "Size, number and secrets of the workers: see `worker` of the module `target`. With `gpus` they run on the platform's instances."
  type        = any
  default     = { disk_gib = 50 }
}

variable "reducer" {
  description = "Size and number of the reducers: see `reducer` of the module `target`."
  type        = any
  default     = {}
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
