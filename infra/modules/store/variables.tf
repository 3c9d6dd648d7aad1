variable "bucket" {
  description = "Name of the bucket, unlike any other in the world."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "A bucket is called by 3 to 63 small letters, digits and `-`."
  }
}

variable "prefix" {
  description = "Where the target keeps its objects in the bucket."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$", var.prefix))
    error_message = "Letters, digits, `-`, `_`, and `/` in between."
  }
}

variable "kms_key_arn" {
  description = "Key that encrypts the objects; null: the one that S3 manages."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null || can(regex("^arn:aws[a-z-]*:kms:", var.kms_key_arn))
    error_message = "It must be the ARN of a KMS key."
  }
}

variable "job_days" {
  description = "Days until the objects of a job are removed: its plan, ledger, logs, and the parts it has left behind. A job must be over by then."
  type        = number
  default     = 90

  validation {
    condition     = var.job_days >= 30
    error_message = "At least 30: messages live for 14 days, and a job may be continued after that."
  }
}

variable "upload_days" {
  description = "Days until an upload in parts is removed that nobody has finished."
  type        = number
  default     = 3

  validation {
    condition     = var.upload_days >= 2
    error_message = "At least 2: the upload of a large output must not be removed while it is written."
  }
}

variable "force_destroy" {
  description = "Let `terraform destroy` remove the bucket with everything in it."
  type        = bool
  default     = false
}

variable "allow_plain_http" {
  description = "Leave out the policy that refuses plain HTTP. Only for an emulator on this machine."
  type        = bool
  default     = false
}
