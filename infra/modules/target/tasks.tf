# The ECS task of each role, and of each pool of workers: one container, its settings and its IAM roles.
#
# The root file system is read-only. The two volumes exist as long as the task; the image sets their owner.

locals {
  # The settings of each task, with what else differs from role to role.
  roles = merge(
    { for key, pool in local.pools : key => merge(pool, {
      role    = "worker"
      command = ["worker", "--grace", tostring(pool.stop_seconds - 20)]
      image   = coalesce(pool.image, "${var.platform.repositories["gristmill-worker"]}:${var.image_tag}${pool.gpus > 0 ? "-cuda" : ""}")
      # By default a worker gets the share of its GPUs in an instance.
      cpu    = coalesce(pool.cpu, pool.gpus > 0 ? local.gpu_groups[key].cpu_units * pool.gpus : null, 4096)
      memory = coalesce(pool.memory, pool.gpus > 0 ? local.gpu_groups[key].memory_mib * pool.gpus : null, 16384)
    }) },
    { reducer = merge(var.target.reducer, {
      role         = "reducer"
      command      = ["reducer"]
      image        = local.reducer_image
      secrets      = {}
      stop_seconds = 120
    }) },
    local.portal_role,
  )
  reducer_image = coalesce(var.target.reducer.image, "${var.platform.repositories["gristmill"]}:${var.image_tag}")

  tasks = { for key, role in local.roles : key => merge({ disk_gib = null, gpus = 0, labels = {} }, role, {
    environment = { for name, value in merge(var.target.environment, {
      AWS_REGION = data.aws_region.current.id
      # CloudWatch makes metrics of lines that a reducer writes into its log.
      GRISTMILL_CLOUDWATCH_NAMESPACE = role.role == "reducer" ? local.metric_namespace : null
      GRISTMILL_LABELS               = length(try(role.labels, {})) > 0 ? join(",", [for name, value in role.labels : "${name}=${value}"]) : null
      GRISTMILL_LEASE_SECONDS        = try(role.lease_seconds, null)
      GRISTMILL_LISTEN               = "0.0.0.0:9464"
      GRISTMILL_LOG_FORMAT           = lookup(var.target.environment, "GRISTMILL_LOG_FORMAT", "json")
      # Scripts get these secrets, and none that Gristmill itself needs.
      GRISTMILL_PASS_ENVIRONMENT = length(role.secrets) > 0 && role.role == "worker" ? join(",", concat(
        compact([lookup(var.target.environment, "GRISTMILL_PASS_ENVIRONMENT", "")]), sort(keys(role.secrets))
      )) : lookup(var.target.environment, "GRISTMILL_PASS_ENVIRONMENT", null)
      GRISTMILL_QUEUE = local.is_sqs ? local.queue : null
      GRISTMILL_STORE = module.store.url
    }) : name => tostring(value) if value != null }
    # The broker's address contains a password, so it is a field of the role's secret.
    secrets = merge(
      role.secrets,
      local.is_sqs ? {} : { GRISTMILL_QUEUE = "${module.rabbitmq[0].broker.secrets[role.role]}:address::" },
    )
  }) }

  # Those of the role itself, and those of ECS before the container runs: fetch the image, open the log, read the secret. All pools
  # of workers have the same.
  role_policies = merge([for role in keys(local.secrets) : {
    "${role}-task"      = module.access.policy_arns[role]
    "${role}-execution" = "arn:${data.aws_partition.current.partition}:iam::aws:policy/service-role/AmazonECSTaskExecutionRolePolicy"
  }]...)

  # Roles with secrets of the caller. Those of a broker have the key of the target.
  roles_with_given_secrets = distinct([for role in local.roles : role.role if length(role.secrets) > 0])
  # The secrets of the tasks of each role, without the fields behind them.
  secrets = { for role in distinct([for task in local.tasks : task.role]) : role => distinct(flatten([
    for task in local.tasks : [for arn in values(task.secrets) : join(":", slice(split(":", arn), 0, 7))] if task.role == role
  ])) }

  writable = { cache = "/var/cache/gristmill", tmp = "/tmp" }

  # Fargate's memory sizes by processor units, in MiB: from, to, step.
  # https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-cpu-memory-error.html
  fargate_memory = {
    256   = [512, 2048, 512]
    512   = [1024, 4096, 1024]
    1024  = [2048, 8192, 1024]
    2048  = [4096, 16384, 1024]
    4096  = [8192, 30720, 1024]
    8192  = [16384, 61440, 4096]
    16384 = [32768, 122880, 8192]
  }
}

resource "aws_ecs_task_definition" "role" {
  for_each = local.tasks

  family                   = "${var.target.name}-${each.key}"
  requires_compatibilities = [each.value.gpus > 0 ? "EC2" : "FARGATE"]
  network_mode             = "awsvpc"
  cpu                      = each.value.cpu
  memory                   = each.value.memory
  execution_role_arn       = aws_iam_role.role["${each.value.role}-execution"].arn
  task_role_arn            = aws_iam_role.role["${each.value.role}-task"].arn

  container_definitions = jsonencode([merge(
    {
      name                   = "gristmill"
      image                  = each.value.image
      command                = each.value.command
      essential              = true
      user                   = "10001"
      readonlyRootFilesystem = true
      stopTimeout            = each.value.stop_seconds
      environment            = [for name, value in each.value.environment : { name = name, value = value }]
      secrets                = [for name, arn in each.value.secrets : { name = name, valueFrom = arn }]
      portMappings           = [{ containerPort = 9464, hostPort = 9464, protocol = "tcp" }]
      mountPoints            = [for name, path in local.writable : { sourceVolume = name, containerPath = path, readOnly = false }]

      healthCheck = {
        command     = ["CMD", "gristmill", "health"]
        interval    = 30
        timeout     = 10
        retries     = 4
        startPeriod = 60
      }

      logConfiguration = {
        logDriver = "awslogs"
        options = {
          awslogs-group         = aws_cloudwatch_log_group.this.name
          awslogs-region        = data.aws_region.current.id
          awslogs-stream-prefix = "${var.target.name}-${each.key}"
          # Undeliverable logs do not stop a worker.
          mode            = "non-blocking"
          max-buffer-size = "4m"
        }
      }
    },
    { for name, value in {
      resourceRequirements = [{ type = "GPU", value = tostring(each.value.gpus) }]
      # Data loaders pass tensors through /dev/shm, which has 64 MiB by default. Fargate cannot change its size.
      linuxParameters = { sharedMemorySize = floor(each.value.memory / 2) }
    } : name => value if each.value.gpus > 0 },
  )])

  dynamic "volume" {
    for_each = local.writable

    content {
      name = volume.key
    }
  }

  dynamic "ephemeral_storage" {
    for_each = each.value.gpus > 0 ? [] : each.value.disk_gib[*]

    content {
      size_in_gib = ephemeral_storage.value
    }
  }

  runtime_platform {
    operating_system_family = "LINUX"
    cpu_architecture        = each.value.architecture
  }

  lifecycle {
    precondition {
      condition     = can(regex("(:|@sha256:)[A-Za-z0-9_.-]+$", each.value.image)) && !endswith(each.value.image, ":latest")
      error_message = "`image`: name a tag that never moves, or a digest; `latest` does not identify a version."
    }

    precondition {
      condition     = each.value.gpus > 0 || contains(keys(local.fargate_memory), tostring(each.value.cpu))
      error_message = "Fargate has no tasks of ${each.value.cpu} processor units: choose ${join(", ", sort(keys(local.fargate_memory)))}."
    }

    precondition {
      condition     = each.value.gpus > 0 || try(each.value.memory >= local.fargate_memory[each.value.cpu][0] && each.value.memory <= local.fargate_memory[each.value.cpu][1] && each.value.memory % local.fargate_memory[each.value.cpu][2] == 0, true)
      error_message = "Fargate has no tasks of ${each.value.cpu} processor units and ${each.value.memory} MiB: choose ${try(format("%d to %d MiB in steps of %d", local.fargate_memory[each.value.cpu]...), "other units")}."
    }
  }
}

data "aws_iam_policy_document" "assumed_by_tasks" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ecs-tasks.amazonaws.com"]
    }

    # Clusters of other accounts must not use the role.
    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.current.account_id]
    }
  }
}

resource "aws_iam_role" "role" {
  for_each = local.role_policies

  name                 = "${var.target.name}-${each.key}"
  description          = "Gristmill: ${var.target.name}-${each.key}"
  assume_role_policy   = data.aws_iam_policy_document.assumed_by_tasks.json
  permissions_boundary = var.target.permissions_boundary_arn
}

resource "aws_iam_role_policy_attachment" "role" {
  for_each = local.role_policies

  role       = aws_iam_role.role[each.key].name
  policy_arn = each.value
}

data "aws_iam_policy_document" "read_secret" {
  # Which roles have secrets is known before their ARNs are.
  for_each = toset(distinct([for task in local.tasks : task.role if length(task.secrets) > 0]))

  statement {
    sid       = "ReadOwnSecrets"
    actions   = ["secretsmanager:GetSecretValue"]
    resources = local.secrets[each.key]
  }

  dynamic "statement" {
    for_each = local.kms_key_arn[*]

    content {
      sid       = "Decrypt"
      actions   = ["kms:Decrypt"]
      resources = [statement.value]
    }
  }

  dynamic "statement" {
    for_each = contains(local.roles_with_given_secrets, each.key) && length(var.target.secret_kms_key_arns) > 0 ? [var.target.secret_kms_key_arns] : []

    content {
      sid       = "DecryptSecrets"
      actions   = ["kms:Decrypt"]
      resources = statement.value

      condition {
        test     = "StringLike"
        variable = "kms:ViaService"
        values   = ["secretsmanager.*.amazonaws.com"]
      }
    }
  }
}

resource "aws_iam_role_policy" "read_secret" {
  for_each = data.aws_iam_policy_document.read_secret

  name   = "read-secret"
  role   = aws_iam_role.role["${each.key}-execution"].name
  policy = each.value.json
}
