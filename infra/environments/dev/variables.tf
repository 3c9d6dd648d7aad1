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

variable "image_tag" {
  description = "Tag of both images in the repositories (output `repositories`). Workers with GPUs use TAG-cuda."
  type        = string
}

variable "target" {
  description = "Settings of the target that differ from those in main.tf. modules/target/variables.tf has all of them."
  type        = any
  default     = {}
}
