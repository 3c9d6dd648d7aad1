variable "name" {
  description = "Name of the target, and prefix of all resource names."
  type        = string
  default     = "gristmill-dev"
}

variable "region" {
  description = "AWS region."
  type        = string
  default     = "eu-central-1"
}

variable "bucket" {
  description = "Name of the bucket; null: the target's name and the account number."
  type        = string
  default     = null
}

variable "image_tag" {
  description = "Tag of both images in the repositories of this environment (output `repositories`)."
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
