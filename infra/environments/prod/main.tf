# A fleet to rely on: private subnets, a key of its own for everything that is kept, a floor of workers on demand, two
# reducers. Queues at SQS, or with `broker = "rabbitmq"` in Amazon MQ. With `gpu`, workers run on instances with GPUs.

provider "aws" {
  region = var.region

  default_tags {
    tags = { Application = "gristmill", Target = var.name }
  }
}

data "aws_partition" "current" {}

data "aws_caller_identity" "current" {}

locals {
  is_sqs   = var.broker == "sqs"
  has_gpus = var.gpu != null
  queue    = local.is_sqs ? module.queue[0].address : module.rabbitmq[0].address
  metrics  = local.is_sqs ? module.queue[0].metrics : module.rabbitmq[0].metrics
  # The address of RabbitMQ with its password is a secret, which tasks are given.
  task_queue       = local.is_sqs ? module.queue[0].address : null
  queue_secret_arn = local.is_sqs ? null : module.rabbitmq[0].secret_arn
}

data "aws_iam_policy_document" "key" {
  # checkov:skip=CKV_AWS_109: it is the policy of the key itself: the account administers it.
  # checkov:skip=CKV_AWS_111: a key is administered by its account, which may do everything with it.
  # checkov:skip=CKV_AWS_356: in the policy of a key, `*` is the key.
  statement {
    sid       = "Administer"
    actions   = ["kms:*"]
    resources = ["*"]

    principals {
      type        = "AWS"
      identifiers = ["arn:${data.aws_partition.current.partition}:iam::${data.aws_caller_identity.current.account_id}:root"]
    }
  }

  # Logs are encrypted, and alarms published, by services in their own name.
  statement {
    sid       = "EncryptLogs"
    actions   = ["kms:Decrypt", "kms:Encrypt", "kms:GenerateDataKey*", "kms:ReEncrypt*", "kms:DescribeKey"]
    resources = ["*"]

    principals {
      type        = "Service"
      identifiers = ["logs.${var.region}.amazonaws.com"]
    }

    condition {
      test     = "ArnLike"
      variable = "kms:EncryptionContext:aws:logs:arn"
      values   = ["arn:${data.aws_partition.current.partition}:logs:${var.region}:${data.aws_caller_identity.current.account_id}:log-group:/gristmill/*"]
    }
  }

  statement {
    sid       = "PublishAlarms"
    actions   = ["kms:Decrypt", "kms:GenerateDataKey*"]
    resources = ["*"]

    principals {
      type        = "Service"
      identifiers = ["cloudwatch.amazonaws.com"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.current.account_id]
    }
  }
}

resource "aws_kms_key" "this" {
  description             = "What ${var.name} keeps: messages, objects, images, logs"
  enable_key_rotation     = true
  deletion_window_in_days = 30
  policy                  = data.aws_iam_policy_document.key.json
}

resource "aws_kms_alias" "this" {
  name          = "alias/${var.name}"
  target_key_id = aws_kms_key.this.key_id
}

module "queue" {
  source = "../../modules/queue"
  count  = local.is_sqs ? 1 : 0

  prefix      = var.name
  kms_key_arn = aws_kms_key.this.arn
}

module "rabbitmq" {
  source = "../../modules/rabbitmq"
  count  = local.is_sqs ? 0 : 1

  name                     = var.name
  prefix                   = var.name
  vpc_id                   = var.vpc_id
  subnet_ids               = var.subnet_ids
  client_security_group_id = module.cluster.security_group_id
  password                 = var.broker_password
  password_version         = var.broker_password_version
  kms_key_arn              = aws_kms_key.this.arn
}

module "store" {
  source = "../../modules/store"

  bucket      = var.bucket
  prefix      = var.name
  kms_key_arn = aws_kms_key.this.arn
  job_days    = var.job_days
}

module "cluster" {
  source = "../../modules/cluster"

  name                = var.name
  vpc_id              = var.vpc_id
  kms_key_arn         = aws_kms_key.this.arn
  scraper_cidr_blocks = var.scraper_cidr_blocks
  on_demand_floor     = var.on_demand_floor
  gpu                 = var.gpu
  gpu_subnet_ids      = var.subnet_ids
}

module "access" {
  source = "../../modules/access"

  name         = var.name
  bucket       = module.store.bucket
  prefix       = module.store.prefix
  queue_arns   = local.is_sqs ? module.queue[0].arns : null
  inputs       = concat(["${var.bucket}/inputs"], var.inputs)
  outputs      = concat(["${var.bucket}/outputs"], var.outputs)
  cluster_name = module.cluster.cluster.name
  kms_key_arns = [aws_kms_key.this.arn]
}

module "workers" {
  source = "../../modules/workers"

  name               = "${var.name}-worker"
  cluster            = module.cluster.cluster
  capacity           = local.has_gpus ? module.cluster.gpu_capacity : module.cluster.worker_capacity
  image              = "${module.cluster.repositories["gristmill-worker"]}:${var.image_tag}"
  queue              = local.task_queue
  queue_secret_arn   = local.queue_secret_arn
  has_queue_secret   = !local.is_sqs
  store              = module.store.url
  policy_arn         = module.access.policy_arns["worker"]
  kms_key_arns       = [aws_kms_key.this.arn]
  log_group          = module.cluster.log_group
  subnet_ids         = var.subnet_ids
  security_group_ids = [module.cluster.security_group_id]
  cpu                = var.worker.cpu
  memory             = var.worker.memory
  disk_gib           = local.has_gpus ? null : var.worker.disk_gib
  gpus               = local.has_gpus ? var.gpu.gpus_per_worker : 0
  workers_min        = var.workers_min
  workers_max        = var.workers_max
  backlog_per_worker = var.backlog_per_worker
  backlog_metrics    = local.metrics.backlog
}

module "reducer" {
  source = "../../modules/reducer"

  name               = "${var.name}-reducer"
  cluster            = module.cluster.cluster
  capacity           = module.cluster.reducer_capacity
  image              = "${module.cluster.repositories["gristmill"]}:${var.image_tag}"
  queue              = local.task_queue
  queue_secret_arn   = local.queue_secret_arn
  has_queue_secret   = !local.is_sqs
  store              = module.store.url
  policy_arn         = module.access.policy_arns["reducer"]
  kms_key_arns       = [aws_kms_key.this.arn]
  log_group          = module.cluster.log_group
  subnet_ids         = var.subnet_ids
  security_group_ids = [module.cluster.security_group_id]
  reducers           = 2
}

module "observability" {
  source = "../../modules/observability"

  name                 = var.name
  metrics              = local.metrics
  has_oldest_age       = local.is_sqs
  cluster_name         = module.cluster.cluster.name
  worker_service_name  = module.workers.service_name
  reducer_service_name = module.reducer.service_name
  log_group            = module.cluster.log_group
  alarm_emails         = var.alarm_emails
  no_progress_minutes  = var.no_progress_minutes
  kms_key_arn          = aws_kms_key.this.arn
}
