variable "name" {
  description = "Name of the service, and beginning of the names of its roles."
  type        = string
}

variable "cluster" {
  description = "The ECS cluster."
  type = object({
    arn  = string
    name = string
  })
}

variable "capacity" {
  description = "Capacity providers, with the tasks that each runs at least and its share of the others."
  type = list(object({
    provider = string
    base     = number
    weight   = number
  }))
}

variable "image" {
  description = "The image, with a tag that does not move or a digest."
  type        = string
}

variable "queue" {
  description = "Address of the queues, without a secret in it; null: it is in `queue_secret_arn`."
  type        = string
}

variable "queue_secret_arn" {
  description = "Secret that holds the address of the queues, with the password of the broker."
  type        = string
  default     = null
}

variable "has_queue_secret" {
  description = "Whether there is such a secret. It is known earlier than its ARN."
  type        = bool
  default     = false
}

variable "store" {
  description = "URL of the store."
  type        = string
}

variable "policy_arn" {
  description = "What the role may do."
  type        = string
}

variable "kms_key_arns" {
  description = "Keys of the secret."
  type        = list(string)
  default     = []
}

variable "log_group" {
  description = "Where stdout and stderr go."
  type        = string
}

variable "subnet_ids" {
  description = "Subnets of the tasks."
  type        = list(string)

  validation {
    condition     = length(var.subnet_ids) > 0
    error_message = "Name at least one subnet."
  }
}

variable "security_group_ids" {
  description = "Security groups of the tasks."
  type        = list(string)
}

variable "assign_public_ip" {
  description = "Whether tasks have public addresses: the way to AWS in a subnet without NAT and endpoints. Nobody can connect to them."
  type        = bool
  default     = false
}

variable "cpu" {
  description = "Processor units of a reducer; 1024 are one core."
  type        = number
  default     = 1024
}

variable "memory" {
  description = "Memory of a reducer in MiB."
  type        = number
  default     = 4096
}

variable "reducers" {
  description = "Number of reducers."
  type        = number
  default     = 1

  validation {
    condition     = var.reducers >= 1 && var.reducers <= 10
    error_message = "From 1 to 10: without a reducer no job ends."
  }
}
