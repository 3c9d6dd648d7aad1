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
  description = "Name of the platform (environments/platform)."
  type        = string
  default     = "gristmill"
}

variable "image_tag" {
  description = "Tag of both images in the repositories (output `repositories`). Workers with GPUs use TAG-cuda."
  type        = string
}

variable "target" {
  description = "The target. modules/target/variables.tf has all settings with their defaults."
  type        = any
}

variable "broker_password" {
  description = "Initial password of the broker's administrator: pass it as TF_VAR_broker_password, never in a file. scripts/broker-users replaces it."
  type        = string
  default     = null
  sensitive   = true
}
