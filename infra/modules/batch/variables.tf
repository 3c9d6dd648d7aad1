variable "name" {
  description = "Name of the job queue, and prefix of all resource names."
  type        = string
  default     = "gristmill"

  validation {
    condition     = can(regex("^[A-Za-z0-9][A-Za-z0-9_-]{0,40}$", var.name))
    error_message = "1 to 41 letters, digits, `-` and `_`."
  }
}

variable "queue" {
  description = "`queue` of the target, in SQS."
  type        = string

  validation {
    condition     = startswith(var.queue, "sqs://")
    error_message = "An address such as sqs://team-a; the address of a broker contains a password, which job definitions would show."
  }
}

variable "store" {
  description = "`store` of the target."
  type        = string
}

variable "images" {
  description = "Images of `worker` and `reducer`, with registry and tag."
  type        = object({ worker = string, reducer = string })
}

variable "policy_arns" {
  description = "Policies of `worker` and `reducer`: output `policy_arns` of the target."
  type        = object({ worker = string, reducer = string })
}

variable "subnet_ids" {
  description = "Private subnets of the machines, with a route to AWS."
  type        = list(string)

  validation {
    condition     = length(var.subnet_ids) > 0
    error_message = "Name at least one subnet."
  }
}

variable "security_group_ids" {
  description = "Security groups of the machines."
  type        = list(string)
}

variable "worker" {
  description = "Size of a worker, with a Python process for each of its `vcpus`; `memory` in MiB. With `gpus` it needs a CUDA image and `instance_types` with GPUs."
  type = object({
    vcpus  = optional(number, 4)
    memory = optional(number, 7680)
    gpus   = optional(number, 0)
  })
  default  = {}
  nullable = false
}

variable "vcpus_max" {
  description = "Maximum number of processors of all machines together."
  type        = number
  default     = 256
}

variable "instance_types" {
  description = "Machine types or families; more of them make spot reclaims less frequent."
  type        = list(string)
  default     = ["c6i", "c6a", "c7i", "c7a", "m6i", "m6a", "m7i", "m7a"]
}

variable "disk_gib" {
  description = "Disk of a machine."
  type        = number
  default     = 100
}

variable "permissions_boundary_arn" {
  description = "Permissions boundary of the roles; null: none."
  type        = string
  default     = null
}
