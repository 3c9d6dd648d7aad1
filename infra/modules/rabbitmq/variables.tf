variable "name" {
  description = "Name of the broker, and prefix of the queue names."
  type        = string
}

variable "vpc_id" {
  description = "Network of the broker."
  type        = string
}

variable "subnet_ids" {
  description = "Subnets of the broker: a single instance uses the first, a cluster all."
  type        = list(string)

  validation {
    condition     = length(var.subnet_ids) >= (var.settings.is_cluster ? 2 : 1)
    error_message = "A cluster needs at least two subnets, a single instance one."
  }
}

variable "settings" {
  description = "`rabbitmq` of the target. Queues keep their initial `lease_seconds`: to change it later, delete TARGET-control and TARGET-dead-letters while no job is open."
  type = object({
    engine_version     = string
    instance_type      = string
    is_cluster         = bool
    lease_seconds      = number
    client_cidr_blocks = list(string)
  })

  validation {
    # https://docs.aws.amazon.com/amazon-mq/latest/developer-guide/rabbitmq-4.html
    condition     = contains(["3.13", "4.2", "4.3"], var.settings.engine_version) && (startswith(var.settings.engine_version, "3.") || startswith(var.settings.instance_type, "mq.m7g."))
    error_message = "`engine_version` is 3.13, 4.2 or 4.3, and RabbitMQ 4 runs only on instances of the type mq.m7g."
  }

  validation {
    condition     = startswith(var.settings.instance_type, "mq.") && !(var.settings.is_cluster && startswith(var.settings.instance_type, "mq.t3."))
    error_message = "`instance_type` is a type such as mq.m7g.large; mq.t3 has no clusters."
  }

  validation {
    # https://docs.aws.amazon.com/amazon-mq/latest/developer-guide/rabbitmq-configuration-policies.html: 2147483647 ms.
    condition     = var.settings.lease_seconds >= 300 && var.settings.lease_seconds <= 2147483 && floor(var.settings.lease_seconds) == var.settings.lease_seconds
    error_message = "`lease_seconds` is a whole number from 300 to 2147483 (24 days)."
  }
}

variable "client_security_group_ids" {
  description = "Security groups whose members may connect, with a name for each."
  type        = map(string)
}

variable "has_portal" {
  description = "Whether the target has a portal, which is a user of the broker."
  type        = bool
}

variable "first_password" {
  description = "Initial password of the administrator."
  type        = string
  sensitive   = true
}

variable "kms_key_arn" {
  description = "Key that encrypts the secrets; null: the key that AWS manages. The broker itself accepts no key."
  type        = string
}
