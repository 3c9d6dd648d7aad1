# One container of a role as an ECS task: how it is configured, who it is, and what it may write to.
#
# The root file system cannot be written. The two volumes live as long as the task; the image says whose they are.

data "aws_partition" "current" {}

data "aws_region" "current" {}

locals {
  variables = merge(
    {
      AWS_REGION           = data.aws_region.current.name
      GRISTMILL_STORE      = var.store
      GRISTMILL_LISTEN     = "0.0.0.0:9464"
      GRISTMILL_LOG_FORMAT = "json"
    },
    var.queue == null ? {} : { GRISTMILL_QUEUE = var.queue },
    var.variables,
  )
  # An address with a password in it.
  secrets      = var.queue_secret_arn == null ? {} : { GRISTMILL_QUEUE = var.queue_secret_arn }
  writable     = { cache = "/var/cache/gristmill", tmp = "/tmp" }
  has_gpus     = var.gpus > 0
  is_on_ec2    = local.has_gpus
  role_of_task = "${var.name}-task"
}

resource "aws_ecs_task_definition" "this" {
  family                   = var.name
  requires_compatibilities = [local.is_on_ec2 ? "EC2" : "FARGATE"]
  network_mode             = "awsvpc"
  cpu                      = var.cpu
  memory                   = var.memory
  execution_role_arn       = aws_iam_role.execution.arn
  task_role_arn            = aws_iam_role.task.arn

  container_definitions = jsonencode([merge(
    {
      name                   = "gristmill"
      image                  = var.image
      command                = var.command
      essential              = true
      user                   = "10001"
      readonlyRootFilesystem = true
      stopTimeout            = var.stop_seconds
      environment            = [for name, value in local.variables : { name = name, value = value }]
      secrets                = [for name, arn in local.secrets : { name = name, valueFrom = arn }]
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
          awslogs-region        = data.aws_region.current.name
          awslogs-stream-prefix = var.name
          # A log that cannot be delivered does not stop a worker.
          mode            = "non-blocking"
          max-buffer-size = "4m"
        }
      }
    },
    local.has_gpus ? { resourceRequirements = [{ type = "GPU", value = tostring(var.gpus) }] } : {},
  )])

  dynamic "volume" {
    for_each = local.writable

    content {
      name = volume.key
    }
  }

  dynamic "ephemeral_storage" {
    for_each = local.is_on_ec2 || var.disk_gib == null ? [] : [var.disk_gib]

    content {
      size_in_gib = ephemeral_storage.value
    }
  }

  runtime_platform {
    operating_system_family = "LINUX"
    cpu_architecture        = var.architecture
  }
}

data "aws_iam_policy_document" "assumed_by_tasks" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ecs-tasks.amazonaws.com"]
    }

    # Nobody else's cluster may use the role.
    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.current.account_id]
    }
  }
}

data "aws_caller_identity" "current" {}

# What the role itself may do.
resource "aws_iam_role" "task" {
  name               = local.role_of_task
  description        = "The role ${var.name} of Gristmill"
  assume_role_policy = data.aws_iam_policy_document.assumed_by_tasks.json
}

resource "aws_iam_role_policy_attachment" "task" {
  role       = aws_iam_role.task.name
  policy_arn = var.policy_arn
}

# What ECS does before the container runs: fetch the image, open the log, read the secret.
resource "aws_iam_role" "execution" {
  name               = "${var.name}-execution"
  description        = "Starts the role ${var.name} of Gristmill"
  assume_role_policy = data.aws_iam_policy_document.assumed_by_tasks.json
}

resource "aws_iam_role_policy_attachment" "execution" {
  role       = aws_iam_role.execution.name
  policy_arn = "arn:${data.aws_partition.current.partition}:iam::aws:policy/service-role/AmazonECSTaskExecutionRolePolicy"
}

data "aws_iam_policy_document" "read_secret" {
  count = var.has_queue_secret ? 1 : 0

  statement {
    sid       = "ReadAddressOfTheBroker"
    actions   = ["secretsmanager:GetSecretValue"]
    resources = [var.queue_secret_arn]
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
  count = var.has_queue_secret ? 1 : 0

  name   = "read-secret"
  role   = aws_iam_role.execution.name
  policy = data.aws_iam_policy_document.read_secret[0].json
}
