variable "name" {
  description = "Name of the platform and its cluster, and prefix of all resource names."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}[a-z0-9]$", var.name))
    error_message = "3 to 32 lower-case letters, digits and `-`; names of image repositories begin with it."
  }
}

variable "vpc_id" {
  description = "Network of the targets."
  type        = string
}

variable "subnet_ids" {
  description = "Subnets of tasks, instances and endpoints, in several zones. Private ones need a route to AWS: NAT, or `endpoints`."
  type        = list(string)

  validation {
    condition     = length(var.subnet_ids) > 0
    error_message = "Name at least one subnet."
  }
}

variable "endpoints" {
  description = "Create AWS endpoints in the network, for private subnets without NAT. `route_table_ids`: the route tables of the subnets, for S3. null: none."
  type = object({
    route_table_ids = list(string)
  })
  default = null
}

variable "has_own_key" {
  description = "Whether a key of the account encrypts messages, objects, images and logs, instead of keys that AWS manages."
  type        = bool
  default     = true
}

variable "kms_key_arn" {
  description = "That key. CloudWatch Logs and CloudWatch alarms need permission to use it (key.tf shows the statements). null: a new one."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null || can(regex("^arn:aws[a-z-]*:kms:", var.kms_key_arn))
    error_message = "It must be the ARN of a KMS key."
  }
}

variable "images_kept" {
  description = "Number of images that each repository keeps."
  type        = number
  default     = 30

  validation {
    condition     = var.images_kept >= 2
    error_message = "At least 2: the current image and the next."
  }
}

variable "container_insights" {
  description = "Whether CloudWatch measures tasks, processor and memory of every service, at a cost. The alarm about missing workers needs it."
  type        = bool
  default     = true
}

variable "force_destroy" {
  description = "Let `terraform destroy` remove repositories with images in them."
  type        = bool
  default     = false
}

variable "permissions_boundary_arn" {
  description = "Permissions boundary of the roles; null: none."
  type        = string
  default     = null
}

variable "gpu" {
  description = "GPU instances; null: none. `instance_types`: alternatives. `on_demand_floor` instances, and `on_demand_percent` of the others, are not spot."
  type = object({
    instance_types    = list(string)
    instances_max     = optional(number, 4)
    disk_gib          = optional(number, 100)
    on_demand_floor   = optional(number, 1)
    on_demand_percent = optional(number, 0)
  })
  default = null

  validation {
    condition     = var.gpu == null || try(length(var.gpu.instance_types) > 0, false)
    error_message = "Name at least one instance type."
  }

  validation {
    condition     = var.gpu == null || try(var.gpu.on_demand_percent >= 0 && var.gpu.on_demand_percent <= 100, false)
    error_message = "`on_demand_percent` is 0 to 100."
  }
}
