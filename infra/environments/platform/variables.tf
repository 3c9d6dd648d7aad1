variable "region" {
  description = "AWS region."
  type        = string
  default     = "eu-central-1"
}

variable "tags" {
  description = "Additional tags of all resources."
  type        = map(string)
  default     = {}
}

variable "platform" {
  description = "The platform. modules/platform/variables.tf has all settings with their defaults."
  type        = any

  validation {
    condition     = length(try(var.platform.subnet_ids, [])) >= 2
    error_message = "`subnet_ids` are at least two."
  }
}
