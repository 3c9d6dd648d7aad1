# One container of a role as an ECS task: settings, IAM roles and writable volumes.
#
# The root file system is read-only. The two volumes exist as long as the task; the image sets their owner.

data "aws_partition" "current" {}

data "aws_region" "current" {}

locals {
  environment = merge(
    {
      AWS_REGION           = data.aws_region.current.id
      GRISTMILL_LISTEN     = "0.0.0.0:9464"
      GRISTMILL_LOG_FORMAT = "json"
    },
    var.environment,
  )
  # Without the field behind it.
  secret_arns = distinct([for arn in values(var.secrets) : join(":", slice(split(":", arn), 0, 7))])
  writable    = { cache = "/var/cache/gristmill", tmp = "/tmp" }
  is_on_ec2   = var.size.gpus > 0

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
  memory_range = lookup(local.fargate_memory, var.size.cpu, null)
}

resource "aws_ecs_task_definition" "this" {
  family                   = var.name
  requires_compatibilities = [local.is_on_ec2 ? "EC2" : "FARGATE"]
  network_mode             = "awsvpc"
  cpu                      = var.size.cpu
  memory                   = var.size.memory
  execution_role_arn       = aws_iam_role.this["execution"].arn
  task_role_arn            = aws_iam_role.this["task"].arn

  container_definitions = jsonencode([merge(
    {
      name                   = "gristmill"
      image                  = var.image
      command                = var.command
      essential              = true
      user                   = "10001"
      readonlyRootFilesystem = true
      stopTimeout            = var.size.stop_seconds
      environment            = [for name, value in local.environment : { name = name, value = value }]
      secrets                = [for name, arn in var.secrets : { name = name, valueFrom = arn }]
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
          awslogs-group         = var.log_group
          awslogs-region        = data.aws_region.current.id
          awslogs-stream-prefix = var.name
          # Undeliverable logs do not stop a worker.
          mode            = "non-blocking"
          max-buffer-size = "4m"
        }
      }
    },
    { for name, value in {
      resourceRequirements = [{ type = "GPU", value = tostring(var.size.gpus) }]
      # Data loaders pass tensors through /dev/shm, which has 64 MiB by default. Fargate cannot change its size.
      linuxParameters = { sharedMemorySize = floor(var.size.memory / 2) }
    } : name => value if local.is_on_ec2 },
  )])

  dynamic "volume" {
    for_each = local.writable

    content {
      name = volume.key
    }
  }

  dynamic "ephemeral_storage" {
    for_each = local.is_on_ec2 || var.size.disk_gib == null ? [] : [var.size.disk_gib]

    content {
      size_in_gib = ephemeral_storage.value
    }
  }

  runtime_platform {
    operating_system_family = "LINUX"
    cpu_architecture        = var.size.architecture
  }

  lifecycle {
    precondition {
      condition     = local.is_on_ec2 || local.memory_range != null
      error_message = "Fargate has no tasks of ${var.size.cpu} processor units: choose ${join(", ", sort(keys(local.fargate_memory)))}."
    }

    precondition {
      condition     = local.is_on_ec2 || try(var.size.memory >= local.memory_range[0] && var.size.memory <= local.memory_range[1] && var.size.memory % local.memory_range[2] == 0, local.memory_range == null)
      error_message = "Fargate has no tasks of ${var.size.cpu} processor units and ${var.size.memory} MiB: choose ${try(local.memory_range[0], 0)} to ${try(local.memory_range[1], 0)} MiB in steps of ${try(local.memory_range[2], 0)}."
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

data "aws_caller_identity" "current" {}

# `task` has the permissions of the role itself; `execution` those of ECS before the container runs: fetch the image, open the log,
# read the secret.
resource "aws_iam_role" "this" {
  for_each = { task = "The role", execution = "Starts the role" }

  name                 = "${var.name}-${each.key}"
  description          = "${each.value} ${var.name} of Gristmill"
  assume_role_policy   = data.aws_iam_policy_document.assumed_by_tasks.json
  permissions_boundary = var.permissions_boundary_arn
}

resource "aws_iam_role_policy_attachment" "this" {
  for_each = {
    task      = var.policy_arn
    execution = "arn:${data.aws_partition.current.partition}:iam::aws:policy/service-role/AmazonECSTaskExecutionRolePolicy"
  }

  role       = aws_iam_role.this[each.key].name
  policy_arn = each.value
}

data "aws_iam_policy_document" "read_secret" {
  count = length(var.secrets) > 0 ? 1 : 0

  statement {
    sid       = "ReadOwnSecrets"
    actions   = ["secretsmanager:GetSecretValue"]
    resources = local.secret_arns
  }

  dynamic "statement" {
    for_each = length(var.kms_key_arns) == 0 ? [] : [var.kms_key_arns]

    content {
      sid       = "Decrypt"
      actions   = ["kms:Decrypt"]
      resources = statement.value
    }
  }
}

resource "aws_iam_role_policy" "read_secret" {
  count = length(var.secrets) > 0 ? 1 : 0

  name   = "read-secret"
  role   = aws_iam_role.this["execution"].name
  policy = data.aws_iam_policy_document.read_secret[0].json
}
