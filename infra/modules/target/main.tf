# A target: queues, store, policies, workers, reducers and alarms of one team, on a platform that teams share.

locals {
  is_sqs       = var.broker == "sqs"
  kms_key_arns = var.platform.kms_key_arn == null ? [] : [var.platform.kms_key_arn]
  bucket       = var.bucket
  prefix       = coalesce(var.prefix, var.name)
  queue        = local.is_sqs ? module.queue[0].address : module.rabbitmq[0].address
  metrics      = local.is_sqs ? module.queue[0].metrics : module.rabbitmq[0].metrics
}

module "queue" {
  source = "../queue"
  count  = local.is_sqs ? 1 : 0

  prefix      = var.name
  kms_key_arn = var.platform.kms_key_arn
}

module "rabbitmq" {
  source = "../rabbitmq"
  count  = local.is_sqs ? 0 : 1

  name                      = var.name
  prefix                    = var.name
  vpc_id                    = var.platform.vpc_id
  subnet_ids                = var.platform.subnet_ids
  engine_version            = var.rabbitmq.engine_version
  instance_type             = var.rabbitmq.instance_type
  is_cluster                = var.rabbitmq.is_cluster
  lease_seconds             = var.rabbitmq.lease_seconds
  client_security_group_ids = merge(local.own_group_ids, var.rabbitmq.client_security_group_ids)
  client_cidr_blocks        = var.rabbitmq.client_cidr_blocks
  first_password            = var.broker_password
  kms_key_arn               = var.platform.kms_key_arn
  has_portal                = local.has_portal
}

module "store" {
  source = "../store"

  bucket        = local.bucket
  prefix        = local.prefix
  kms_key_arn   = var.platform.kms_key_arn
  job_days      = var.job_days
  force_destroy = var.force_destroy
}

module "access" {
  source = "../access"

  name                = var.name
  bucket              = module.store.bucket
  prefix              = module.store.prefix
  queue_arns          = local.is_sqs ? module.queue[0].arns : null
  inputs              = concat(["${local.bucket}/inputs"], var.inputs)
  outputs             = concat(["${local.bucket}/outputs"], var.outputs)
  cluster_name        = var.platform.cluster.name
  kms_key_arns        = local.kms_key_arns
  input_kms_key_arns  = var.input_kms_key_arns
  output_kms_key_arns = var.output_kms_key_arns
  partition           = data.aws_partition.current.partition
}

data "aws_partition" "current" {}

data "aws_region" "current" {}

resource "aws_cloudwatch_log_group" "this" {
  # checkov:skip=CKV_AWS_338: a year by default; two weeks for trials (environments/dev).
  name              = "/gristmill/${var.name}"
  retention_in_days = var.log_days
  kms_key_id        = var.platform.kms_key_arn
}

module "observability" {
  source = "../observability"

  name                   = var.name
  metrics                = local.metrics
  has_ages               = local.is_sqs
  has_container_insights = var.platform.has_container_insights
  cluster                = var.platform.cluster
  autoscaling_group      = local.has_gpus ? var.platform.gpu.autoscaling_group : null
  worker_service_name    = local.worker_name
  reducer_service_name   = aws_ecs_service.resident["reducer"].name
  log_group              = aws_cloudwatch_log_group.this.name
  log_days               = var.log_days
  kms_key_arn            = var.platform.kms_key_arn
  emails                 = var.alarm_emails
  thresholds             = var.alarm_thresholds
  runbooks               = var.runbooks
}
