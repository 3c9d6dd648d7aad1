variable "platform" {
  description = "Output `platform` of the module `platform`."
  type = object({
    cluster                = object({ arn = string, name = string })
    repositories           = map(string)
    vpc_id                 = string
    subnet_ids             = list(string)
    kms_key_arn            = string
    public_egress          = bool
    endpoints              = object({ security_group_id = string, s3_prefix_list_id = string })
    has_container_insights = bool
    gpu_groups = map(object({
      capacity_provider = string
      autoscaling_group = string
      memory_mib        = number
      cpu_units         = number
    }))
  })
}

variable "image_tag" {
  description = "Tag of both images in the repositories of the platform. Workers with GPUs use TAG-cuda."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9_][A-Za-z0-9_.-]{0,122}$", var.image_tag)) && var.image_tag != "latest"
    error_message = "A tag that never moves, such as a version or a commit."
  }
}

variable "broker_password" {
  description = "Initial password of the broker's administrator: pass it as TF_VAR_broker_password, never in a file. scripts/broker-users replaces it."
  type        = string
  default     = null
  sensitive   = true

  validation {
    condition     = var.target.broker == "sqs" || can(regex("^[^,:= ]{12,250}$", var.broker_password))
    error_message = "RabbitMQ requires `broker_password`: 12 to 250 characters, none of `,`, `:`, `=` and space."
  }
}

variable "target" {
  description = "The target: all settings with their defaults, in modules/target/variables.tf."
  type = object({
    # Name of the target, and prefix of all resource names.
    name = string
    # The bucket to create, globally unique, and the prefix of the target's objects in it: by default its name.
    bucket = string
    prefix = optional(string)
    # Locations, BUCKET or BUCKET/PREFIX, that jobs may read and write besides inputs/ and outputs/ of the bucket; keys of both.
    inputs              = optional(list(string), [])
    outputs             = optional(list(string), [])
    input_kms_key_arns  = optional(list(string), [])
    output_kms_key_arns = optional(list(string), [])
    # Keys that encrypt `secrets` of pools and the token of the portal, if they are neither the key of the target nor that of AWS. ECS
    # decrypts with them when it starts a task.
    secret_kms_key_arns = optional(list(string), [])
    # Days until the objects of a job expire, and until the roles' own logs do. Logs of jobs are in the bucket.
    job_days = optional(number, 90)
    log_days = optional(number, 365)
    # What happens to outputs below outputs/ of the bucket; infra/COSTS.md has the cost of each choice.
    retention = optional(object({
      # Days for which S3 keeps replaced and deleted objects as versions (those of jobs: one). null: no versioning; 0: no longer.
      version_days = optional(number)
      # Days until outputs move to a cheaper class (Glacier Instant Retrieval), and until they expire. null: never.
      cold_days   = optional(number)
      output_days = optional(number)
      # S3 copies each output to this bucket, of any account and Region, and deletes nothing there. Requires `version_days`, versioning of
      # that bucket, and with a key of the target a key there.
      replica = optional(object({
        bucket_arn  = string
        account_id  = optional(string)
        kms_key_arn = optional(string)
      }))
    }), {})
    # Let `terraform destroy` remove the bucket with all objects.
    force_destroy = optional(bool, false)
    # A key of the target instead of that of the platform: one that Terraform creates, or yours. CloudWatch Logs and CloudWatch alarms
    # need permission to use yours (modules/key/main.tf shows the statements).
    has_own_key = optional(bool, false)
    kms_key_arn = optional(string)
    # Permissions boundary of all roles, if the account requires one.
    permissions_boundary_arn = optional(string)

    # Environment variables of all roles, such as PIP_INDEX_URL for your package index, or settings of Gristmill.
    environment = optional(map(string), {})
    # Whether tasks may connect to every address by HTTPS; by default as the platform says. Otherwise they reach AWS by the endpoints of
    # the platform. Further destinations by TCP, such as a proxy, a database or a file system, with a name for each, one of a range, a
    # security group and a prefix list, and a port.
    public_egress = optional(bool)
    egress = optional(map(object({
      port              = number
      cidr_block        = optional(string)
      security_group_id = optional(string)
      prefix_list_id    = optional(string)
    })), {})
    # Whether tasks have public addresses, as the route to AWS in a subnet without NAT and endpoints. Nothing can connect to them.
    assign_public_ip = optional(bool, false)
    # Maximum of workers during a deployment, in percent. With 100 a new worker starts only after an old one has ended.
    deployment_maximum_percent = optional(number, 100)

    # Kind of queues: `sqs`, or `rabbitmq` for mini-batches of more than 12 hours.
    broker = optional(string, "sqs")
    # Version of RabbitMQ: 3.13, 4.2 or 4.3.
    # `lease_seconds`: how long a worker may hold a mini-batch. Clients other than the tasks, with a name for each group: pipelines
    # that enqueue, machines that run `doctor` or scripts/broker-users, KEDA.
    rabbitmq = optional(object({
      engine_version            = optional(string, "4.2")
      instance_type             = optional(string, "mq.m7g.large")
      is_cluster                = optional(bool, true)
      lease_seconds             = optional(number, 172800)
      client_security_group_ids = optional(map(string), {})
      client_cidr_blocks        = optional(list(string), [])
    }), {})

    # Pools of workers by name. A pool is an ECS service whose tasks are alike; each starts and stops by the needs that it serves.
    workers = optional(map(object({
      # Units (1024 are one core) and MiB: by default 4096 and 16384, or with GPUs their share in an instance.
      cpu    = optional(number)
      memory = optional(number)
      # Of a Fargate task: by default the 20 GiB of every task.
      disk_gib = optional(number)
      # GPUs of each worker, and of which group of the platform, if it has several.
      gpus         = optional(number, 0)
      gpu_group    = optional(string)
      architecture = optional(string, "X86_64")
      # Your own image, with registry and tag, instead of that of the platform.
      image = optional(string)
      # Labels of the workers, which jobs may require.
      labels = optional(map(string), {})
      # As many workers as the largest need of the last `idle_minutes`, and `min` if there was none.
      min          = optional(number, 0)
      max          = optional(number, 50)
      idle_minutes = optional(number, 10)
      # The needs that start workers of this pool, in the words of the metric `ProcessesWanted`, such as "label zone=a". By default
      # those that GPUs and labels meet, and no other pool serves: infra/README.md, "Pools of workers", has the rule.
      requires = optional(list(string))
      # Processes of each worker, for scaling: by default one for each GPU, or for each core.
      processes = optional(number)
      # On-demand workers, and the percentage of further workers that are on-demand; the rest are spot. With GPUs their group sets both.
      on_demand_floor   = optional(number, 1)
      on_demand_percent = optional(number, 1)
      # Time after which the queue redelivers the mini-batches of a dead worker: by default 8.
      lease_seconds = optional(number)
      stop_seconds  = optional(number, 120)
      # Environment variables for scripts of jobs, with ARNs in Secrets Manager (`:KEY::` behind one selects a field). They are encrypted
      # with the key of the target, that of AWS, or one of `secret_kms_key_arns`.
      secrets = optional(map(string), {})
    })), { cpu = {} })

    reducer = optional(object({
      count        = optional(number, 2)
      cpu          = optional(number, 1024)
      memory       = optional(number, 4096)
      disk_gib     = optional(number)
      architecture = optional(string, "X86_64")
      image        = optional(string)
    }), {})

    # The portal shows the jobs in a browser. null: none. Only these clients can connect to it, by HTTP on port 9464.
    portal = optional(object({
      client_security_group_ids = optional(map(string), {})
      client_cidr_blocks        = optional(list(string), [])
      # It answers those who hold the token, the value of this secret, or instead requests with this header, which a load balancer
      # sets for users that it knows.
      token_secret_arn = optional(string)
      trust_header     = optional(string)
      # Where it registers: a target group (type `ip`, HTTP) of your internal load balancer. Names by which browsers reach it.
      target_group_arn = optional(string)
      hosts            = optional(list(string), [])
      # Otherwise its users cancel, continue and start jobs.
      read_only    = optional(bool, true)
      cpu          = optional(number, 512)
      memory       = optional(number, 1024)
      architecture = optional(string, "X86_64")
      # By default the image of the reducer.
      image = optional(string)
    }))

    # Address ranges that may scrape the tasks' metrics, port 9464.
    scraper_cidr_blocks = optional(list(string), [])
    # Mail addresses for alarms. AWS asks each address for confirmation first.
    alarm_emails = optional(list(string), [])
    # URL of your runbooks, for the alarm descriptions: by default infra/RUNBOOKS.md of the project.
    runbooks = optional(string, "infra/RUNBOOKS.md")
    alarm_thresholds = optional(object({
      # Minutes that jobs may wait while no worker runs.
      no_worker_minutes = optional(number, 15)
      # Minutes in which no mini-batch of any open job ends: more than the longest mini-batch takes.
      no_progress_minutes = optional(number, 30)
      dead_letters        = optional(number, 0)
      # Percent of workers that may be missing, and for how many minutes.
      missing_percent = optional(number, 20)
      missing_minutes = optional(number, 15)
      # Failed placements in 15 minutes; tasks that lose their spot capacity in an hour.
      placement_failures = optional(number, 3)
      reclaimed_tasks    = optional(number, 20)
    }), {})
  })

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,18}[a-z0-9]$", var.target.name))
    error_message = "`name` has 3 to 20 lower-case letters, digits and `-`."
  }

  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653], var.target.log_days)
    error_message = "`log_days` is 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, or some years more: CloudWatch accepts no others."
  }

  validation {
    condition     = length(setintersection(keys(var.target.environment), ["AWS_REGION", "GRISTMILL_CLOUDWATCH_NAMESPACE", "GRISTMILL_LABELS", "GRISTMILL_LEASE_SECONDS", "GRISTMILL_LISTEN", "GRISTMILL_QUEUE", "GRISTMILL_STORE", "GRISTMILL_PORTAL_TOKEN"])) == 0
    error_message = "`environment`: the target itself sets region, queue, store, address, labels, lease, metrics and token of its tasks."
  }

  validation {
    condition     = var.target.retention.replica == null || try(var.target.retention.version_days >= 1, false)
    error_message = "`retention.replica` requires versions: set `version_days` to at least 1."
  }

  validation {
    condition     = var.target.kms_key_arn == null || can(regex("^arn:aws[a-z-]*:kms:", var.target.kms_key_arn))
    error_message = "`kms_key_arn` is the ARN of a KMS key."
  }

  validation {
    # IAM knows keys by their ARN alone, and `*` would be every key.
    condition     = alltrue([for arn in concat(var.target.input_kms_key_arns, var.target.output_kms_key_arns, var.target.secret_kms_key_arns) : can(regex("^arn:aws[a-z-]*:kms:[^*]+:key/[^*]+$", arn))])
    error_message = "`input_kms_key_arns`, `output_kms_key_arns` and `secret_kms_key_arns` are ARNs of KMS keys, not of aliases, without `*`."
  }

  validation {
    condition     = coalesce(var.target.public_egress, var.platform.public_egress) || var.platform.endpoints != null || length(var.target.egress) > 0
    error_message = "Without `public_egress` tasks could not reach AWS: set `endpoints` of the platform, or name your own endpoints in `egress`."
  }

  validation {
    condition = alltrue([for name, rule in var.target.egress : alltrue([
      can(regex("^[a-z0-9-]{1,40}$", name)),
      rule.port >= 1 && rule.port <= 65535,
      rule.cidr_block == null || can(cidrhost(rule.cidr_block, 0)),
      length([for part in ["cidr_block", "security_group_id", "prefix_list_id"] : part if rule[part] != null]) == 1,
    ])])
    error_message = "Each of `egress` has a name of lower-case letters, digits and `-`, a port, and one of `cidr_block` (such as 10.0.0.0/16), `security_group_id` and `prefix_list_id`."
  }

  validation {
    condition     = var.target.deployment_maximum_percent >= 100 && var.target.deployment_maximum_percent <= 200
    error_message = "`deployment_maximum_percent` is 100 to 200."
  }

  validation {
    condition     = contains(["sqs", "rabbitmq"], var.target.broker)
    error_message = "`broker` is `sqs` or `rabbitmq`."
  }

  validation {
    condition     = alltrue([for size in concat(values(var.target.workers), [var.target.reducer]) : try(size.disk_gib >= 21 && size.disk_gib <= 200, size.disk_gib == null)])
    error_message = "`disk_gib` is 21 to 200."
  }

  validation {
    condition     = alltrue([for size in concat(values(var.target.workers), [var.target.reducer], var.target.portal[*]) : contains(["X86_64", "ARM64"], size.architecture)])
    error_message = "`architecture` is X86_64 or ARM64, as the images are."
  }

  validation {
    condition     = alltrue([for block in concat(var.target.scraper_cidr_blocks, var.target.rabbitmq.client_cidr_blocks, try(var.target.portal.client_cidr_blocks, [])) : can(cidrhost(block, 0)) && !endswith(block, "/0")])
    error_message = "Address ranges are blocks such as 10.0.0.0/16, not the whole internet."
  }

  validation {
    # The name of the longest resource, an IAM role, has 64 characters.
    condition     = alltrue([for name in keys(var.target.workers) : can(regex("^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$", name))])
    error_message = "The name of a pool in `workers` has 1 to 20 lower-case letters, digits and `-`."
  }

  validation {
    condition     = alltrue([for pool in var.target.workers : pool.gpus == 0 || can(var.platform.gpu_groups[pool.gpu_group != null ? pool.gpu_group : one(keys(var.platform.gpu_groups))])])
    error_message = "A pool with `gpus` names one of the groups of the platform in `gpu_group`, unless there is only one; there are: ${join(", ", keys(var.platform.gpu_groups))}."
  }

  validation {
    condition     = alltrue([for pool in var.target.workers : pool.min >= 0 && pool.max >= max(1, pool.min) && floor(pool.max) == pool.max])
    error_message = "`max` of a pool is a whole number, at least 1 and at least `min`."
  }

  validation {
    condition     = alltrue([for pool in var.target.workers : try(pool.processes >= 1 && floor(pool.processes) == pool.processes, pool.processes == null)])
    error_message = "`processes` of a pool is a whole number, at least 1."
  }

  validation {
    condition     = alltrue(flatten([for pool in var.target.workers : [for name, value in pool.labels : can(regex("^[A-Za-z0-9_./-]{1,63}$", name)) && can(regex("^[A-Za-z0-9_./-]{1,63}$", value))]]))
    error_message = "Names and values of `labels` have 1 to 63 letters, digits, `-`, `_`, `.` and `/`."
  }

  validation {
    condition     = length(flatten([for pool in var.target.workers : coalesce(pool.requires, [])])) == length(distinct(flatten([for pool in var.target.workers : coalesce(pool.requires, [])])))
    error_message = "A need starts workers of one pool only: name it in `requires` of one."
  }

  validation {
    # What a pool lacks starts workers that no job can use. The size of its memory depends on the machine, so nothing checks it.
    condition = alltrue(flatten([for pool in var.target.workers : [for need in coalesce(pool.requires, []) : [for part in split(", ", need) : anytrue([
      part == "any",
      can(regex("^[0-9.]+ [KMG]B of memory$", part)),
      try(tonumber(regex("^([0-9]+) GPUs?$", part)[0]) <= pool.gpus, false),
      try(tonumber(regex("^([0-9]+) processors?$", part)[0]) <= coalesce(pool.cpu, pool.gpus > 0 ? 1000000 : 4096) / 1024, false),
      try(pool.labels[regex("^label ([^=]+)=(.+)$", part)[0]] == regex("^label ([^=]+)=(.+)$", part)[1], false),
    ])]]]))
    error_message = "`requires` of a pool names needs that its workers meet, in the words of `ProcessesWanted`: \"any\", or \"1 GPU\", \"8 processors\", \"16 GB of memory\" and \"label zone=a\", in this order with \", \" between them."
  }

  validation {
    condition     = alltrue([for pool in var.target.workers : pool.idle_minutes >= 2 && pool.idle_minutes <= 60])
    error_message = "`idle_minutes` of a pool is 2 to 60."
  }

  validation {
    condition     = alltrue([for pool in var.target.workers : pool.on_demand_percent >= 0 && pool.on_demand_percent <= 100 && (pool.on_demand_percent > 0 || pool.on_demand_floor == 0)])
    error_message = "`on_demand_percent` of a pool is 0 to 100, and at least 1 with `on_demand_floor`: ECS places no tasks, not even a minimum, with a provider whose weight is 0."
  }

  validation {
    condition     = alltrue([for pool in var.target.workers : try(pool.lease_seconds >= 3 && pool.lease_seconds <= 600, pool.lease_seconds == null)])
    error_message = "`lease_seconds` of a pool is 3 to 600."
  }

  validation {
    condition     = alltrue([for pool in var.target.workers : pool.stop_seconds >= 30 && pool.stop_seconds <= 120])
    error_message = "`stop_seconds` of a pool is 30 to 120: ECS does not wait longer."
  }

  validation {
    condition     = alltrue([for pool in var.target.workers : alltrue([for arn in values(pool.secrets) : can(regex("^arn:aws[a-z-]*:secretsmanager:", arn))]) && length(setintersection(keys(pool.secrets), concat(keys(var.target.environment), ["GRISTMILL_QUEUE"]))) == 0])
    error_message = "`secrets` of a pool are ARNs in Secrets Manager, of variables that are not in `environment`."
  }

  validation {
    condition     = var.target.reducer.count >= 1 && var.target.reducer.count <= 10
    error_message = "`reducer.count` is 1 to 10: without a reducer no job begins or ends, and workers do not scale."
  }

  validation {
    condition     = try((var.target.portal.token_secret_arn == null) != (var.target.portal.trust_header == null), var.target.portal == null)
    error_message = "The portal requires either `token_secret_arn` or `trust_header`."
  }

  validation {
    # A client that connects to the portal itself could set the header.
    condition     = try(var.target.portal.trust_header, null) == null || try(length(var.target.portal.client_cidr_blocks) == 0 && length(var.target.portal.client_security_group_ids) == 1, false)
    error_message = "With `trust_header` only the load balancer may connect to the portal: name its group alone in `client_security_group_ids`, and no `client_cidr_blocks`."
  }

  validation {
    condition     = try(length(var.target.portal.client_security_group_ids) + length(var.target.portal.client_cidr_blocks) > 0, var.target.portal == null)
    error_message = "Nothing can connect to the portal: set `client_security_group_ids` or `client_cidr_blocks`."
  }

  validation {
    condition     = try(var.target.portal.target_group_arn, null) == null || try(length(var.target.portal.hosts) > 0, false)
    error_message = "Behind a load balancer the portal requires `hosts`: it answers to no other names."
  }

  validation {
    condition     = alltrue([for address in var.target.alarm_emails : can(regex("^[^@ ]+@[^@ ]+$", address))])
    error_message = "`alarm_emails` are mail addresses."
  }

  validation {
    # Starting workers takes some minutes, and CloudWatch looks back a day at most.
    condition     = var.target.alarm_thresholds.no_worker_minutes >= 5 && var.target.alarm_thresholds.no_worker_minutes <= 1440 && var.target.alarm_thresholds.missing_minutes >= 5 && var.target.alarm_thresholds.missing_minutes <= 1440
    error_message = "`no_worker_minutes` and `missing_minutes` are 5 to 1440."
  }

  validation {
    condition     = contains(range(5, 1441, 5), var.target.alarm_thresholds.no_progress_minutes)
    error_message = "`no_progress_minutes` is 5 to 1440, in steps of 5."
  }
}
