variable "name" {
  description = "Alias of the key."
  type        = string
}

variable "description" {
  description = "What the key encrypts."
  type        = string
}

variable "log_groups" {
  description = "Name of the target whose logs it encrypts, or `*`: those of all targets."
  type        = string
}
