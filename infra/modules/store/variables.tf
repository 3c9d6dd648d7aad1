variable "bucket" {
  description = "Name of the bucket, globally unique."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "A bucket is called by 3 to 63 small letters, digits and `-`."
  }
}

variable "prefix" {
  description = "Prefix of the target's objects in the bucket."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$", var.prefix))
    error_message = "Letters, digits, `-`, `_`, and `/` in between."
  }
}

variable "kms_key_arn" {
  description = "Key that encrypts the objects; null: S3's own key."
  type        = string
  default     = null
}

variable "job_days" {
  description = "Days until the objects of a job expire: plan, ledger, logs, and remaining parts. Jobs must end earlier."
  type        = number
  default     = 90

  validation {
    condition     = var.job_days >= 30
    error_message = "At least 30: queues keep messages for 14 days, and users may continue a job after that."
  }
}

variable "retention" {
  description = "`retention` of the target."
  type = object({
    version_days = number
    cold_days    = number
    output_days  = number
  })
  default = { version_days = null, cold_days = null, output_days = null }

  validation {
    condition     = try(var.retention.version_days >= 0 && floor(var.retention.version_days) == var.retention.version_days, var.retention.version_days == null)
    error_message = "`version_days` is a whole number; 0 suspends versioning."
  }

  validation {
    condition     = alltrue([for days in [var.retention.cold_days, var.retention.output_days] : try(days >= 1 && floor(days) == days, days == null)]) && try(var.retention.output_days > var.retention.cold_days, true)
    error_message = "`cold_days` and `output_days` are whole numbers of at least 1, and outputs expire after they have become cold."
  }
}

variable "force_destroy" {
  description = "Let `terraform destroy` remove the bucket with all objects."
  type        = bool
  default     = false
}

variable "allow_plain_http" {
  description = "Omit the policy that rejects plain HTTP. Only for a local emulator."
  type        = bool
  default     = false
}
