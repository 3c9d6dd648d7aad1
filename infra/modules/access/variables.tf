variable "name" {
  description = "Name of the target, with which the names of the policies begin."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]{1,40}$", var.name))
    error_message = "A name has 1 to 40 letters, digits, `-` and `_`."
  }
}

variable "bucket" {
  description = "Bucket of the store."
  type        = string
}

variable "prefix" {
  description = "Where the target keeps its objects in the bucket."
  type        = string
}

variable "queue_arns" {
  description = "ARNs of the queues; null: the target uses RabbitMQ, which has users of its own."
  type = object({
    tasks        = string
    results      = string
    dead_letters = string
  })
  default = null
}

variable "inputs" {
  description = "What jobs may read, each as BUCKET or BUCKET/PREFIX: read by workers, and listed by who enqueues."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for place in var.inputs : can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^*?]*)?$", place))])
    error_message = "Write BUCKET or BUCKET/PREFIX, without s3:// and without `*`."
  }
}

variable "outputs" {
  description = "Where jobs may write their outputs, each as BUCKET or BUCKET/PREFIX: written by reducers alone."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for place in var.outputs : can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^*?]*)?$", place))])
    error_message = "Write BUCKET or BUCKET/PREFIX, without s3:// and without `*`."
  }
}

variable "cluster_name" {
  description = "ECS cluster of the workers, which protect their own tasks; null: they run elsewhere."
  type        = string
  default     = null
}

variable "kms_key_arns" {
  description = "Keys of the queues and the store, if they are not managed by AWS."
  type        = list(string)
  default     = []
}

variable "partition" {
  description = "Part of AWS, as ARNs name it: aws, aws-cn or aws-us-gov."
  type        = string
  default     = "aws"

  validation {
    condition     = contains(["aws", "aws-cn", "aws-us-gov"], var.partition)
    error_message = "aws, aws-cn or aws-us-gov."
  }
}
