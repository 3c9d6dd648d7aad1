variable "name" {
  description = "Name of the platform, by which targets find it."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}[a-z0-9]$", var.name))
    error_message = "3 to 32 lower-case letters, digits and `-`."
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

variable "tags" {
  description = "Additional tags of all resources."
  type        = map(string)
  default     = {}
}

variable "vpc_id" {
  description = "Network of the targets."
  type        = string

  validation {
    condition     = startswith(var.vpc_id, "vpc-")
    error_message = "The id of a VPC."
  }
}

variable "subnet_ids" {
  description = "Private subnets, in several zones, with a route to AWS: NAT, or `endpoints`."
  type        = list(string)

  validation {
    condition     = length(var.subnet_ids) >= 2 && alltrue([for id in var.subnet_ids : startswith(id, "subnet-")])
    error_message = "At least two subnet ids."
  }
}

variable "endpoints" {
  description = "Create AWS endpoints in the network, for subnets without NAT: `route_table_ids` of the subnets. null: none."
  type = object({
    route_table_ids = list(string)
  })
  default = null
}

variable "kms_key_arn" {
  description = "Your key, which encrypts messages, objects, images and logs; null: a new one."
  type        = string
  default     = null
}

variable "container_insights" {
  description = "Whether CloudWatch measures tasks, processor and memory of every service, at a cost. The alarm about missing workers needs it."
  type        = bool
  default     = true
}

variable "permissions_boundary_arn" {
  description = "Permissions boundary of all roles, if the account requires one; null: none."
  type        = string
  default     = null
}

variable "gpu" {
  description = "EC2 instances with GPUs, which run only while tasks need them: `instance_types` (alternatives), `instances_max`, `disk_gib`, `on_demand_floor`, `on_demand_percent`. null: none."
  type        = any
  default     = null

  validation {
    condition     = var.gpu == null || try(length(setsubtract(keys(var.gpu), ["instance_types", "instances_max", "disk_gib", "on_demand_floor", "on_demand_percent"])) == 0, false)
    error_message = "`gpu` has instance_types, instances_max, disk_gib, on_demand_floor and on_demand_percent."
  }
}
