variable "name" {
  description = "Name of the broker."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]{1,50}$", var.name))
    error_message = "A broker is called by 1 to 50 letters, digits, `-` and `_`."
  }
}

variable "prefix" {
  description = "Prefix of the queue names."
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
    # https://docs.aws.amazon.com/amazon-mq/latest/developer-guide/rabbitmq-4.html
    condition     = var.engine_version == "3.13"
    error_message = "3.13: with RabbitMQ 4 Amazon MQ does not report the sizes of single queues, so workers would never start."
  }
}

variable "instance_type" {
  description = "Type of the broker's instances."
  type        = string
  default     = "mq.m5.large"

  validation {
    condition     = startswith(var.instance_type, "mq.") && !(var.is_cluster && startswith(var.instance_type, "mq.t3."))
    error_message = "A type such as mq.m5.large; mq.t3 has no clusters."
  }
}

variable "is_cluster" {
  description = "Three instances in three zones, or one."
  type        = bool
  default     = true
}

variable "lease_seconds" {
  description = "How long a worker may hold a message: more than the longest mini-batch. Queues keep their initial value: to change it later, delete the queues of the target while they are empty."
  type        = number
  default     = 172800

  validation {
    # https://docs.aws.amazon.com/amazon-mq/latest/developer-guide/rabbitmq-configuration-policies.html: 2147483647 ms.
    condition     = var.lease_seconds >= 300 && var.lease_seconds <= 2147483 && floor(var.lease_seconds) == var.lease_seconds
    error_message = "A whole number of seconds from 300 to 2147483 (24 days)."
  }
}

variable "vpc_id" {
  description = "Network of the broker."
  type        = string
}

variable "subnet_ids" {
  description = "Subnets of the broker: a single instance uses the first, a cluster all."
  type        = list(string)

  validation {
    condition     = length(var.subnet_ids) >= (var.is_cluster ? 2 : 1)
    error_message = "A cluster needs at least two subnets, a single instance one."
  }
}

variable "client_security_group_ids" {
  description = "Security groups whose members may connect, with a name for each: tasks, pipelines, machines of operators, KEDA."
  type        = map(string)
}

variable "client_cidr_blocks" {
  description = "Address ranges of private networks that may connect."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for block in var.client_cidr_blocks : can(cidrhost(block, 0)) && !endswith(block, "/0")])
    error_message = "Blocks such as 10.0.0.0/16, not the whole internet."
  }
}

variable "has_portal" {
  description = "Whether the target has a portal, which is a user of the broker."
  type        = bool
  default     = false
}

variable "first_password" {
  description = "Initial password of the administrator: pass it as TF_VAR_broker_password, never in a file."
  type        = string
  sensitive   = true

  validation {
    condition     = can(regex("^[^,:= ]{12,250}$", var.first_password))
    error_message = "12 to 250 characters, none of `,`, `:`, `=` and space."
  }
}

variable "kms_key_arn" {
  description = "Key that encrypts the secrets; null: the key that AWS manages. The broker itself accepts no key."
  type        = string
  default     = null
}
