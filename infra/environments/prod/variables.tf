variable "name" {
  description = "Name of the target; names of everything begin with it."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,18}[a-z0-9]$", var.name))
    error_message = "3 to 20 small letters, digits and `-`."
  }
}

variable "region" {
  description = "AWS region."
  type        = string
  default     = "eu-central-1"

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "A region such as eu-central-1."
  }
}

variable "bucket" {
  description = "Name of the bucket."
  type        = string
}

variable "image_tag" {
  description = "Tag of both images in the repositories of this environment (output `repositories`)."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$", var.image_tag)) && var.image_tag != "latest"
    error_message = "A tag that does not move, such as a version or a commit."
  }
}

variable "vpc_id" {
  description = "Network of the fleet."
  type        = string

  validation {
    condition     = startswith(var.vpc_id, "vpc-")
    error_message = "The id of a VPC."
  }
}

variable "subnet_ids" {
  description = "Private subnets, in several zones, with a way to AWS (NAT, or endpoints of SQS, ECR, logs, and a gateway to S3)."
  type        = list(string)

  validation {
    condition     = length(var.subnet_ids) >= 2 && alltrue([for id in var.subnet_ids : startswith(id, "subnet-")])
    error_message = "At least two ids of subnets."
  }
}

variable "broker" {
  description = "Where the queues are: `sqs`, or `rabbitmq` for mini-batches of more than 12 hours."
  type        = string
  default     = "sqs"

  validation {
    condition     = contains(["sqs", "rabbitmq"], var.broker)
    error_message = "`sqs` or `rabbitmq`."
  }
}

variable "broker_password" {
  description = "Password of RabbitMQ: give it as TF_VAR_broker_password, and never in a file."
  type        = string
  default     = null
  sensitive   = true

  validation {
    condition     = var.broker == "sqs" || var.broker_password != null
    error_message = "RabbitMQ needs one."
  }
}

variable "broker_password_version" {
  description = "Raised by one whenever the password is changed."
  type        = number
  default     = 1
}

variable "inputs" {
  description = "What jobs may read besides inputs/ of the bucket, each as BUCKET or BUCKET/PREFIX."
  type        = list(string)
  default     = []
}

variable "outputs" {
  description = "Where jobs may write outputs besides outputs/ of the bucket, each as BUCKET or BUCKET/PREFIX."
  type        = list(string)
  default     = []
}

variable "job_days" {
  description = "Days until the objects of a job are removed."
  type        = number
  default     = 90
}

variable "worker" {
  description = "Size of a worker: processor units (1024 are one core), memory in MiB, disk in GiB. With `gpu` it must fit into an instance, of whose memory ECS keeps some, and the disk is that of the instance."
  type = object({
    cpu      = optional(number, 4096)
    memory   = optional(number, 16384)
    disk_gib = optional(number, 50)
  })
  default = {}
}

variable "workers_min" {
  description = "Workers that are there without anything to do."
  type        = number
  default     = 0
}

variable "workers_max" {
  description = "The most workers."
  type        = number
  default     = 50
}

variable "on_demand_floor" {
  description = "Workers (with GPUs: instances) that are not spot, if any run at all."
  type        = number
  default     = 1
}

variable "backlog_per_worker" {
  description = "Mini-batches that are worth a worker."
  type        = number
  default     = 100
}

variable "gpu" {
  description = "Run the workers on EC2 instances with GPUs: their types, how many at most, and GPUs of one worker; null: on Fargate."
  type = object({
    instance_types  = list(string)
    instances_max   = optional(number, 4)
    disk_gib        = optional(number, 100)
    gpus_per_worker = optional(number, 1)
  })
  default = null
}

variable "scraper_cidr_blocks" {
  description = "Who may scrape the metrics of the tasks, port 9464."
  type        = list(string)
  default     = []
}

variable "alarm_emails" {
  description = "Who is told of alarms."
  type        = list(string)
  default     = []
}

variable "no_progress_minutes" {
  description = "Minutes without a result, although there is work, until people are told."
  type        = number
  default     = 30
}
