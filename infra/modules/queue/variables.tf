variable "prefix" {
  description = "Prefix of the queue names, and of the target's address: sqs://PREFIX."
  type        = string
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
