variable "name" {
  description = "Name of the cluster, with which the names of everything begin that belongs to it."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}[a-z0-9]$", var.name))
    error_message = "3 to 32 small letters, digits and `-`; names of image repositories begin with it."
  }
}

variable "vpc_id" {
  description = "Network of the tasks."
  type        = string
}

variable "kms_key_arn" {
  description = "Key that encrypts images and logs; null: those that AWS manages."
  type        = string
  default     = null
}

variable "log_days" {
  description = "Days that the logs of the roles themselves are kept; logs of jobs are in the store."
  type        = number
  default     = 365

  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653], var.log_days)
    error_message = "CloudWatch takes 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731 and some years more."
  }
}

variable "images_kept" {
  description = "Images that each repository keeps."
  type        = number
  default     = 30

  validation {
    condition     = var.images_kept >= 2
    error_message = "At least 2: the one that runs, and the next."
  }
}

variable "container_insights" {
  description = "Processor and memory of every task in CloudWatch, which costs."
  type        = bool
  default     = true
}

variable "force_destroy" {
  description = "Let `terraform destroy` remove repositories with images in them."
  type        = bool
  default     = false
}

variable "scraper_cidr_blocks" {
  description = "Who may scrape the metrics of the tasks, port 9464."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for block in var.scraper_cidr_blocks : can(cidrhost(block, 0)) && !endswith(block, "/0")])
    error_message = "Blocks such as 10.0.0.0/16, and not the whole world."
  }
}

variable "on_demand_floor" {
  description = "Worker tasks (with GPUs: instances) that are not spot, so that a shortage of spot capacity stops no job for good. They count from the first that runs: with none to do there is none."
  type        = number
  default     = 1

  validation {
    condition     = var.on_demand_floor >= 0 && floor(var.on_demand_floor) == var.on_demand_floor
    error_message = "A whole number."
  }
}

variable "on_demand_percent" {
  description = "How many of a hundred workers beyond the floor are not spot."
  type        = number
  default     = 1

  validation {
    condition     = var.on_demand_percent >= 1 && var.on_demand_percent <= 99
    error_message = "From 1 to 99: ECS places nothing, not even a floor, with a provider whose weight is 0."
  }
}

variable "gpu" {
  description = "Instances with GPUs; null: none. `instance_types`: alternatives, all with as many GPUs."
  type = object({
    instance_types = list(string)
    instances_max  = optional(number, 4)
    disk_gib       = optional(number, 100)
  })
  default = null

  validation {
    condition     = var.gpu == null || try(length(var.gpu.instance_types) > 0, false)
    error_message = "Name at least one instance type."
  }
}

variable "gpu_subnet_ids" {
  description = "Private subnets of the instances with GPUs, with a way to AWS."
  type        = list(string)
  default     = []

  validation {
    condition     = var.gpu == null || length(var.gpu_subnet_ids) > 0
    error_message = "Instances with GPUs need at least one subnet."
  }
}
