variable "platform" {
  description = "The platform: all settings with their defaults, in modules/platform/variables.tf."
  type = object({
    # Name of the platform and its cluster, and prefix of all resource names.
    name = string
    # Network of the targets, and subnets of tasks, instances and endpoints, in several zones. Private ones need a route to AWS: NAT,
    # or AWS endpoints in the network, created with the route tables of the subnets. Only principals of this account can use the
    # endpoints, for its own resources and those of `account_ids`: buckets with inputs, repositories with your images.
    vpc_id     = string
    subnet_ids = list(string)
    endpoints = optional(object({
      route_table_ids = list(string)
      account_ids     = optional(list(string), [])
    }))
    # Whether instances, and by default the tasks of targets, may connect to every address by HTTPS. Otherwise they reach only the
    # endpoints, and tasks what `egress` of their target allows.
    public_egress = optional(bool, true)

    # Whether a key of the account encrypts messages, objects, images and logs, instead of keys that AWS manages, and which: by default
    # a new one. CloudWatch Logs and CloudWatch alarms need permission to use yours (modules/key/main.tf shows the statements).
    has_own_key = optional(bool, true)
    kms_key_arn = optional(string)
    # Permissions boundary of all roles, if the account requires one.
    permissions_boundary_arn = optional(string)

    # Number of images that each repository keeps, of all teams together: the oldest expires, also if tasks of a team still start
    # from it. Whether `terraform destroy` removes repositories with images in them.
    images_kept   = optional(number, 500)
    force_destroy = optional(bool, false)
    # Whether CloudWatch measures tasks, processor and memory of every service, at a cost. The alarm about missing workers needs it.
    container_insights = optional(bool, true)

    # Groups of EC2 instances with GPUs by name, which run only while tasks need them. ECS takes any of `instance_types`, so a group has
    # one kind of GPU. `on_demand_floor` instances, and `on_demand_percent` of the others, are not spot.
    gpu_groups = optional(map(object({
      instance_types    = list(string)
      instances_max     = optional(number, 4)
      disk_gib          = optional(number, 100)
      on_demand_floor   = optional(number, 1)
      on_demand_percent = optional(number, 0)
    })), {})
  })

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}[a-z0-9]$", var.platform.name))
    error_message = "`name` has 3 to 32 lower-case letters, digits and `-`; names of image repositories begin with it."
  }

  validation {
    condition     = startswith(var.platform.vpc_id, "vpc-") && length(var.platform.subnet_ids) > 0 && alltrue([for id in var.platform.subnet_ids : startswith(id, "subnet-")])
    error_message = "`vpc_id` is the id of a VPC, and `subnet_ids` are those of its subnets."
  }

  validation {
    condition     = var.platform.kms_key_arn == null || can(regex("^arn:aws[a-z-]*:kms:", var.platform.kms_key_arn))
    error_message = "`kms_key_arn` is the ARN of a KMS key."
  }

  validation {
    condition     = var.platform.public_egress || var.platform.endpoints != null
    error_message = "Without `public_egress` nothing could reach AWS: set `endpoints`."
  }

  validation {
    condition     = alltrue([for id in try(var.platform.endpoints.account_ids, []) : can(regex("^[0-9]{12}$", id))])
    error_message = "`account_ids` are ids of AWS accounts, with 12 digits."
  }

  validation {
    condition     = var.platform.images_kept >= 2
    error_message = "`images_kept` is at least 2: the current image and the next."
  }

  validation {
    condition     = alltrue([for name, group in var.platform.gpu_groups : can(regex("^[a-z0-9-]{1,20}$", name)) && length(group.instance_types) > 0 && group.on_demand_percent >= 0 && group.on_demand_percent <= 100])
    error_message = "Each of `gpu_groups` has a name of 1 to 20 lower-case letters, digits and `-`, and at least one of `instance_types`; `on_demand_percent` is 0 to 100."
  }
}
