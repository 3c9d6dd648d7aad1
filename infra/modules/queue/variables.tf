variable "prefix" {
  description = "Prefix of the queue names, and of the target's address: sqs://PREFIX. No prefix of another target continues it, after a `-`."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]{1,40}$", var.prefix))
    error_message = "`prefix` has 1 to 40 letters, digits, `-` and `_`: names of queues have 80, and the id of a job follows."
  }
}

variable "kms_key_arn" {
  description = "Key that encrypts the messages; null: SQS's own key."
  type        = string
  default     = null
}

variable "allow_plain_http" {
  description = "Omit the policies that reject plain HTTP. Only for a local emulator."
  type        = bool
  default     = false
}
