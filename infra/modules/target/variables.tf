variable "name" {
  description = "Name of the target, and prefix of all resource names."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,18}[a-z0-9]$", var.name))
    error_message = "3 to 20 lower-case letters, digits and `-`."
  }
}

variable "platform" {
  description = "Output `platform` of the module `platform`."
  type = object({
    cluster                = object({ arn = string, name = string })
    repositories           = map(string)
    vpc_id                 = string
    subnet_ids             = list(string)
    kms_key_arn            = string
    has_container_insights = bool
    gpu = object({
      capacity_provider = string
      autoscaling_group = string
      memory_mib        = number
      cpu_units         = number
    })
  })
}

variable "bucket" {
  description = "Name of the bucket to create, globally unique."
  type        = string
}

variable "prefix" {
  description = "Prefix of the target's objects in the bucket; null: its name."
  type        = string
  default     = null
}

variable "image_tag" {
  description = "Tag of both images in the repositories of the platform. Workers with GPUs use TAG-cuda."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9_][A-Za-z0-9_.-]{0,122}$", var.image_tag)) && var.image_tag != "latest"
    error_message = "A tag that never moves, such as a version or a commit."
  }
}

variable "images" {
  description = "Your own images instead, with registry and tag; null: those of the platform. The portal runs the image of the reducer, unless it has its own."
  type = object({
    worker  = optional(string)
    reducer = optional(string)
    portal  = optional(string)
  })
  default  = {}
  nullable = false
}

variable "environment" {
  description = "Environment variables of all roles, such as PIP_INDEX_URL for your package index, or settings of Gristmill."
  type        = map(string)
  default     = {}

  validation {
    condition     = length(setintersection(keys(var.environment), ["AWS_REGION", "GRISTMILL_LEASE_SECONDS", "GRISTMILL_LISTEN", "GRISTMILL_QUEUE", "GRISTMILL_STORE", "GRISTMILL_PORTAL_TOKEN"])) == 0
    error_message = "The target itself sets region, queue, store, address, lease and token of its tasks."
  }
}

variable "assign_public_ip" {
  description = "Whether tasks have public addresses, as the route to AWS in a subnet without NAT and endpoints. Nothing can connect to them."
  type        = bool
  default     = false
}

variable "broker" {
  description = "Kind of queues: `sqs`, or `rabbitmq` for mini-batches of more than 12 hours."
  type        = string
  default     = "sqs"

  validation {
    condition     = contains(["sqs", "rabbitmq"], var.broker)
    error_message = "`sqs` or `rabbitmq`."
  }
}

variable "rabbitmq" {
  description = "The broker, if it is RabbitMQ. Clients other than the tasks: pipelines that enqueue, machines that run `doctor` or scripts/broker-users, KEDA. `lease_seconds`: how long a worker may hold a mini-batch."
  type = object({
    instance_type             = optional(string, "mq.m5.large")
    engine_version            = optional(string, "3.13")
    is_cluster                = optional(bool, true)
    lease_seconds             = optional(number, 172800)
    client_security_group_ids = optional(map(string), {})
    client_cidr_blocks        = optional(list(string), [])
  })
  default  = {}
  nullable = false
}

variable "broker_password" {
  description = "Initial password of the broker's administrator: pass it as TF_VAR_broker_password, never in a file. scripts/broker-users replaces it."
  type        = string
  default     = null
  sensitive   = true

  validation {
    condition     = var.broker == "sqs" || var.broker_password != null
    error_message = "RabbitMQ requires `broker_password`."
  }
}

variable "inputs" {
  description = "Locations that jobs may read in addition to inputs/ of the bucket, as BUCKET or BUCKET/PREFIX."
  type        = list(string)
  default     = []
}

variable "outputs" {
  description = "Locations that jobs may write outputs to in addition to outputs/ of the bucket, as BUCKET or BUCKET/PREFIX."
  type        = list(string)
  default     = []
}

variable "input_kms_key_arns" {
  description = "Keys that encrypt those inputs."
  type        = list(string)
  default     = []
}

variable "output_kms_key_arns" {
  description = "Keys that encrypt those outputs."
  type        = list(string)
  default     = []
}

variable "job_days" {
  description = "Days until the objects of a job expire."
  type        = number
  default     = 90
}

variable "force_destroy" {
  description = "Let `terraform destroy` remove the bucket with all objects."
  type        = bool
  default     = false
}

variable "worker" {
  description = <<-TEXT
    Workers. `cpu` in units (1024 are one core) and `memory` in MiB: by default 4096 and 16384, or with GPUs their share in an
    instance. `disk_gib` of a Fargate task; null: the 20 GiB of every task. `min` and `max` workers, one for `backlog_each`
    mini-batches. `on_demand_floor` workers, and `on_demand_percent` of the others, are not spot (with GPUs the platform sets
    these). `lease_seconds`: time after which the queue redelivers the mini-batches of a dead worker; unset: 8. `secrets`: environment
    variables for scripts of jobs, with ARNs in Secrets Manager (`:KEY::` behind one selects a field), encrypted with the key of
    the platform or of AWS.
  TEXT
  type = object({
    cpu               = optional(number)
    memory            = optional(number)
    disk_gib          = optional(number)
    gpus              = optional(number, 0)
    architecture      = optional(string, "X86_64")
    min               = optional(number, 0)
    max               = optional(number, 50)
    backlog_each      = optional(number, 100)
    idle_minutes      = optional(number, 10)
    on_demand_floor   = optional(number, 1)
    on_demand_percent = optional(number, 1)
    lease_seconds     = optional(number)
    stop_seconds      = optional(number, 120)
    secrets           = optional(map(string), {})
  })
  default  = {}
  nullable = false

  validation {
    condition     = var.worker.disk_gib == null || try(var.worker.disk_gib >= 21 && var.worker.disk_gib <= 200, false)
    error_message = "`disk_gib` is 21 to 200."
  }

  validation {
    condition     = var.worker.gpus == 0 || var.platform.gpu != null
    error_message = "The platform has no instances with GPUs: set its `gpu`, or `worker.gpus` to 0."
  }

  validation {
    condition     = contains(["X86_64", "ARM64"], var.worker.architecture)
    error_message = "`architecture` is X86_64 or ARM64, as the images are."
  }

  validation {
    condition     = var.worker.min >= 0 && var.worker.max >= max(1, var.worker.min) && floor(var.worker.max) == var.worker.max
    error_message = "`max` is a whole number, at least 1 and at least `min`."
  }

  validation {
    condition     = var.worker.backlog_each >= 1 && floor(var.worker.backlog_each) == var.worker.backlog_each
    error_message = "`backlog_each` is a whole number, at least 1."
  }

  validation {
    condition     = var.worker.idle_minutes >= 2 && var.worker.idle_minutes <= 60
    error_message = "`idle_minutes` is 2 to 60."
  }

  validation {
    condition     = var.worker.on_demand_percent >= 1 && var.worker.on_demand_percent <= 99
    error_message = "`on_demand_percent` is 1 to 99: ECS places no tasks, not even a minimum, with a provider whose weight is 0."
  }

  validation {
    condition     = var.worker.lease_seconds == null || try(var.worker.lease_seconds >= 3 && var.worker.lease_seconds <= 600, false)
    error_message = "`lease_seconds` is 3 to 600."
  }

  validation {
    condition     = alltrue([for arn in values(var.worker.secrets) : can(regex("^arn:aws[a-z-]*:secretsmanager:", arn))]) && length(setintersection(keys(var.worker.secrets), concat(keys(var.environment), ["GRISTMILL_QUEUE"]))) == 0
    error_message = "`secrets` are ARNs in Secrets Manager, of variables that are not in `environment`."
  }

  validation {
    condition     = var.worker.stop_seconds >= 30 && var.worker.stop_seconds <= 120
    error_message = "`stop_seconds` is 30 to 120: ECS does not wait longer."
  }
}

variable "reducer" {
  description = "Number of reducers, and the size of each. `disk_gib`: null means the 20 GiB of every Fargate task."
  type = object({
    count        = optional(number, 2)
    cpu          = optional(number, 1024)
    memory       = optional(number, 4096)
    disk_gib     = optional(number)
    architecture = optional(string, "X86_64")
  })
  default  = {}
  nullable = false

  validation {
    condition     = var.reducer.count >= 1 && var.reducer.count <= 10
    error_message = "`count` is 1 to 10: without a reducer no job ends."
  }

  validation {
    condition     = var.reducer.disk_gib == null || try(var.reducer.disk_gib >= 21 && var.reducer.disk_gib <= 200, false)
    error_message = "`disk_gib` is 21 to 200."
  }

  validation {
    condition     = contains(["X86_64", "ARM64"], var.reducer.architecture)
    error_message = "`architecture` is X86_64 or ARM64, as the images are."
  }
}

variable "portal" {
  description = <<-TEXT
    The portal, which shows the jobs in a browser; null: none. Only `client_security_group_ids` (with a name for each) and
    `client_cidr_blocks` can connect to it, on port 9464, by HTTP. It answers those who hold the token, which is the value of
    the secret `token_secret_arn`, or instead requests with the header `trust_header`, which a load balancer sets for users
    that it knows. `target_group_arn`: where the portal registers, a target group (type `ip`, HTTP) of your internal load
    balancer. `hosts`: names by which browsers reach the portal. Without `read_only` its users cancel, continue and start jobs.
  TEXT
  type = object({
    token_secret_arn          = optional(string)
    trust_header              = optional(string)
    client_security_group_ids = optional(map(string), {})
    client_cidr_blocks        = optional(list(string), [])
    target_group_arn          = optional(string)
    hosts                     = optional(list(string), [])
    read_only                 = optional(bool, true)
    cpu                       = optional(number, 512)
    memory                    = optional(number, 1024)
    architecture              = optional(string, "X86_64")
  })
  default = null

  validation {
    condition     = var.portal == null || try((var.portal.token_secret_arn == null) != (var.portal.trust_header == null), false)
    error_message = "The portal requires either `token_secret_arn` or `trust_header`."
  }

  # A client that connects to the portal itself could set the header.
  validation {
    condition     = try(var.portal.trust_header, null) == null || try(length(var.portal.client_cidr_blocks) == 0 && length(var.portal.client_security_group_ids) == 1, false)
    error_message = "With `trust_header` only the load balancer may connect to the portal: name its group alone in `client_security_group_ids`, and no `client_cidr_blocks`."
  }

  validation {
    condition     = var.portal == null || try(length(var.portal.client_security_group_ids) + length(var.portal.client_cidr_blocks) > 0, false)
    error_message = "Nothing can connect to the portal: set `client_security_group_ids` or `client_cidr_blocks`."
  }

  validation {
    condition     = try(var.portal.target_group_arn, null) == null || length(try(var.portal.hosts, [])) > 0
    error_message = "Behind a load balancer the portal requires `hosts`: it answers to no other names."
  }

  validation {
    condition     = alltrue([for block in try(var.portal.client_cidr_blocks, []) : can(cidrhost(block, 0)) && !endswith(block, "/0")])
    error_message = "`client_cidr_blocks` are blocks such as 10.0.0.0/16, not the whole internet."
  }

  validation {
    condition     = contains(["X86_64", "ARM64"], try(var.portal.architecture, "X86_64"))
    error_message = "`architecture` is X86_64 or ARM64, as the images are."
  }
}

variable "deployment_maximum_percent" {
  description = "Maximum of workers during a deployment, in percent of the desired number. With 100 a new worker starts only after an old one has ended."
  type        = number
  default     = 100

  validation {
    condition     = var.deployment_maximum_percent >= 100 && var.deployment_maximum_percent <= 200
    error_message = "100 to 200."
  }
}

variable "permissions_boundary_arn" {
  description = "Permissions boundary of the roles; null: none."
  type        = string
  default     = null
}

variable "log_days" {
  description = "Retention of the roles' own logs, in days; job logs are in the store."
  type        = number
  default     = 365

  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653], var.log_days)
    error_message = "CloudWatch accepts 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731 and some years more."
  }
}

variable "scraper_cidr_blocks" {
  description = "Address ranges that may scrape the tasks' metrics, port 9464."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for block in var.scraper_cidr_blocks : can(cidrhost(block, 0)) && !endswith(block, "/0")])
    error_message = "Blocks such as 10.0.0.0/16, not the whole internet."
  }
}

variable "alarm_emails" {
  description = "Mail addresses for alarms."
  type        = list(string)
  default     = []
}

variable "alarm_thresholds" {
  description = "Alarm thresholds: see `thresholds` of the module `observability`."
  type        = any
  default     = {}
}

variable "runbooks" {
  description = "URL of your runbooks, for the alarm descriptions; null: infra/RUNBOOKS.md of the project."
  type        = string
  default     = null
}
