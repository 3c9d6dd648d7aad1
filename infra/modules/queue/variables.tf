variable "prefix" {
  description = "Prefix of the queue names, and of the target's address: sqs://PREFIX."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]{1,60}$", var.prefix))
    error_message = "A prefix has 1 to 60 letters, digits, `-` and `_`."
  }
}

variable "kms_key_arn" {
  description = "Key that encrypts the messages; null: SQS's own key."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null || can(regex("^arn:aws[a-z-]*:kms:", var.kms_key_arn))
    error_message = "It must be the ARN of a KMS key."
  }
}

variable "message_retention_seconds" {
  description = "Retention of unacknowledged messages: how long a job may wait for its fleet."
  type        = number
  default     = 1209600

  validation {
    condition     = var.message_retention_seconds >= 86400 && var.message_retention_seconds <= 1209600
    error_message = "SQS keeps messages for 14 days at most; `gristmill doctor` wants a day at least."
  }
}

variable "receives_max" {
  description = "Receives after which SQS itself moves a message to the dead letters."
  type        = number
  default     = 100

  validation {
    condition     = var.receives_max >= 20 && var.receives_max <= 1000
    error_message = "Between 20 and 1000: jobs lose up to 10 deliveries of a mini-batch before they give it up themselves."
  }
}

variable "allow_plain_http" {
  description = "Omit the policies that reject plain HTTP. Only for a local emulator."
  type        = bool
  default     = false
}
