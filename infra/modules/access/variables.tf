variable "name" {
  description = "Name of the target, and prefix of the policy names."
  type        = string
}

variable "bucket" {
  description = "Bucket of the store."
  type        = string
}

variable "prefix" {
  description = "Prefix of the target's objects in the bucket."
  type        = string
}

variable "queue_arns" {
  description = "ARNs of PREFIX-control and PREFIX-dead-letters; null: the target uses RabbitMQ, which has its own users."
  type = object({
    control      = string
    dead_letters = string
  })
  default = null
}

variable "inputs" {
  description = "Locations that workers read and enqueuers list, as BUCKET or BUCKET/PREFIX."
  type        = list(string)
  default     = []
}

variable "outputs" {
  description = "Locations to which reducers, and no other role, write outputs, as BUCKET or BUCKET/PREFIX."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for place in concat(var.inputs, var.outputs) : can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^*?]*)?$", place))])
    error_message = "Write each of `inputs` and `outputs` as BUCKET or BUCKET/PREFIX, without s3:// and without `*`."
  }
}

variable "cluster_name" {
  description = "ECS cluster of the workers, which protect tasks with the output `worker_tags`; null: they run elsewhere."
  type        = string
  default     = null
}

variable "kms_key_arns" {
  description = "Keys of the queues and the store, if they are not managed by AWS."
  type        = list(string)
  default     = []
}

variable "input_kms_key_arns" {
  description = "Keys that encrypt inputs."
  type        = list(string)
  default     = []
}

variable "output_kms_key_arns" {
  description = "Keys that encrypt outputs."
  type        = list(string)
  default     = []
}

variable "partition" {
  description = "AWS partition: aws, aws-cn or aws-us-gov."
  type        = string
  default     = "aws"
}
