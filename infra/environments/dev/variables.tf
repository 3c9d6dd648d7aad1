variable "name" {
  description = "Name of the target; names of everything begin with it."
  type        = string
  default     = "gristmill-dev"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,18}[a-z0-9]$", var.name))
    error_message = "3 to 20 small letters, digits and `-`."
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
  description = "Name of the bucket; null: the target's, with the number of the account."
  type        = string
  default     = null
}

variable "image_tag" {
  description = "Tag of both images in the repositories of this environment (output `repositories`)."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$", var.image_tag)) && var.image_tag != "latest"
    error_message = "A tag that does not move, such as a version or a commit."
  }
}

variable "inputs" {
  description = "What jobs may read besides inputs/ of the bucket, each as BUCKET or BUCKET/PREFIX."
  type        = list(string)
  default     = []
}

variable "outputs" {
  description = "Where jobs may write outputs besides outputs/ of the bucket, each as BUCKET or BUCKET/PREFIX."
  type        = list(string)
  default     = []
}

variable "workers_max" {
  description = "The most workers."
  type        = number
  default     = 4
}

variable "backlog_per_worker" {
  description = "Mini-batches that are worth a worker."
  type        = number
  default     = 20
}

variable "alarm_emails" {
  description = "Who is told of alarms."
  type        = list(string)
  default     = []
}
