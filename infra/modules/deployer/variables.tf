variable "deployer" {
  description = "Who may apply what: all settings with their defaults, in modules/deployer/variables.tf."
  type = object({
    # Prefix of the names of the policies. Not one of `names`, whose policies the deployer may change.
    policy_prefix = optional(string, "deploy-gristmill")
    # Names of the platforms, targets and arrays of AWS Batch; buckets of the targets.
    names   = list(string)
    buckets = list(string)
    # Keys of yours that encrypt messages, objects, images or secrets of the targets.
    kms_key_arns = optional(list(string), [])
    # Where Terraform keeps its state: BUCKET/KEY, where the key may end with `*`; null: a file.
    state = optional(string)
    # Without it the deployer can give the roles of a target any right, and so has any right. Set the same boundary for targets and platforms.
    permissions_boundary_arn = optional(string)
  })

  validation {
    condition     = length(var.deployer.names) > 0 && alltrue([for name in var.deployer.names : can(regex("^[A-Za-z0-9][A-Za-z0-9_-]{0,40}$", name))])
    error_message = "`names` are names of platforms, targets and arrays of workers, at least one."
  }

  validation {
    condition     = alltrue([for bucket in var.deployer.buckets : can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", bucket))])
    error_message = "`buckets` are names of buckets, without s3:// and without `*`."
  }

  validation {
    condition     = !anytrue([for name in var.deployer.names : startswith("${var.deployer.policy_prefix}-", "${name}-")])
    error_message = "The deployer could change its own policies: choose a `policy_prefix` that none of `names` begins."
  }
}
