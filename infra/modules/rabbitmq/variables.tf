variable "name" {
  description = "Name of the broker."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]{1,50}$", var.name))
    error_message = "A broker is called by 1 to 50 letters, digits, `-` and `_`."
  }
}

variable "prefix" {
  description = "First part of the queues' names."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]{1,60}$", var.prefix))
    error_message = "A prefix has 1 to 60 letters, digits, `-` and `_`."
  }
}

variable "engine_version" {
  description = "Version of RabbitMQ."
  type        = string
  default     = "3.13"

  validation {
    condition     = can(regex("^(3\\.13|4\\.[0-9]+)$", var.engine_version))
    error_message = "3.13 or 4.x: quorum queues are needed."
  }
}

variable "instance_type" {
  description = "Type of the broker's instances."
  type        = string
  default     = "mq.m5.large"
}

variable "is_cluster" {
  description = "Three instances in three zones, or one."
  type        = bool
  default     = true
}

variable "lease_seconds" {
  description = "How long a message may be held: more than the longest mini-batch. Another value than 1800 stands in the target as `lease_seconds` too."
  type        = number
  default     = 1800

  validation {
    condition     = var.lease_seconds >= 300
    error_message = "At least 300."
  }
}

variable "vpc_id" {
  description = "Network of the broker."
  type        = string
}

variable "subnet_ids" {
  description = "Subnets of the broker: one for one instance, several for a cluster."
  type        = list(string)
}

variable "client_security_group_id" {
  description = "Who may connect."
  type        = string
}

variable "username" {
  description = "User of the broker."
  type        = string
  default     = "gristmill"

  validation {
    condition     = can(regex("^[A-Za-z0-9_.-]{2,100}$", var.username))
    error_message = "2 to 100 letters, digits, `-`, `.` and `_`."
  }
}

variable "password" {
  description = "Password of the broker: give it as the variable TF_VAR_broker_password of the environment, and never in a file."
  type        = string
  sensitive   = true

  validation {
    condition     = can(regex("^[^,:= ]{12,250}$", var.password))
    error_message = "12 to 250 characters, none of `,`, `:`, `=` and space."
  }
}

variable "password_version" {
  description = "Raised by one whenever the password is changed."
  type        = number
  default     = 1
}

variable "kms_key_arn" {
  description = "Key that encrypts broker and secret; null: those that AWS manages."
  type        = string
  default     = null
}
