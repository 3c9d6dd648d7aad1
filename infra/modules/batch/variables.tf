variable "batch" {
  description = "Arrays of workers for a target. modules/batch/variables.tf has all settings with their defaults."
  type = object({
    # Name of the job queue, and prefix of all resource names.
    name = optional(string, "gristmill")
    # `queue` (in SQS) and `store` of the target, and its output `policy_arns`.
    queue       = string
    store       = string
    policy_arns = object({ worker = string, reducer = string })
    # Images with registry and tag.
    images = object({ worker = string, reducer = string })
    # Private subnets of the machines, with a route to AWS.
    subnet_ids         = list(string)
    security_group_ids = list(string)
    # A worker has a Python process for each of its `vcpus`; `memory` in MiB. With `gpus` it needs a CUDA image and `instance_types` with
    # GPUs.
    worker = optional(object({
      vcpus  = optional(number, 4)
      memory = optional(number, 7680)
      gpus   = optional(number, 0)
    }), {})
    # Processors of all machines together at most, types or families of machines (more of them make spot reclaims less frequent),
    # and the disk of each.
    vcpus_max      = optional(number, 256)
    instance_types = optional(list(string), ["c6i", "c6a", "c7i", "c7a", "m6i", "m6a", "m7i", "m7a"])
    disk_gib       = optional(number, 100)
    # Permissions boundary of the roles.
    permissions_boundary_arn = optional(string)
  })

  validation {
    condition     = can(regex("^[A-Za-z0-9][A-Za-z0-9_-]{0,40}$", var.batch.name))
    error_message = "`name` has 1 to 41 letters, digits, `-` and `_`."
  }

  validation {
    condition     = startswith(var.batch.queue, "sqs://")
    error_message = "`queue` is an address such as sqs://team-a; the address of a broker contains a password, which job definitions would show."
  }

  validation {
    condition     = length(var.batch.subnet_ids) > 0
    error_message = "`subnet_ids` names at least one subnet."
  }
}
