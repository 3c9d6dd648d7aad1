# A target: queues, store, policies, workers, reducers and alarms of one team, on a platform that teams share.

locals {
  is_sqs      = var.target.broker == "sqs"
  kms_key_arn = var.target.kms_key_arn != null ? var.target.kms_key_arn : var.target.has_own_key ? one(module.key[*].arn) : var.platform.kms_key_arn

  # The address of the queues. Reducers and `doctor` create those of jobs with the key and the tags that it names.
  queue = local.is_sqs ? join("?", compact([module.queue[0].address, join("&", concat(
    [for arn in local.kms_key_arn[*] : "kms_key=${urlencode(arn)}"],
    [for name, value in data.aws_default_tags.current.tags : "tag.${urlencode(name)}=${urlencode(value)}"],
  ))])) : module.rabbitmq[0].broker.address
}

module "key" {
  source = "../key"
  count  = var.target.has_own_key && var.target.kms_key_arn == null ? 1 : 0

  name        = var.target.name
  description = "Messages, objects, secrets and logs of ${var.target.name}"
  log_groups  = var.target.name
}

module "queue" {
  source = "../queue"
  count  = local.is_sqs ? 1 : 0

  prefix      = var.target.name
  kms_key_arn = local.kms_key_arn
}

module "rabbitmq" {
  source = "../rabbitmq"
  count  = local.is_sqs ? 0 : 1

  name                      = var.target.name
  vpc_id                    = var.platform.vpc_id
  subnet_ids                = var.platform.subnet_ids
  settings                  = var.target.rabbitmq
  client_security_group_ids = merge(local.own_group_ids, var.target.rabbitmq.client_security_group_ids)
  first_password            = var.broker_password
  kms_key_arn               = local.kms_key_arn
  has_portal                = local.has_portal
}

module "store" {
  source = "../store"

  bucket        = var.target.bucket
  prefix        = coalesce(var.target.prefix, var.target.name)
  kms_key_arn   = local.kms_key_arn
  job_days      = var.target.job_days
  retention     = var.target.retention
  force_destroy = var.target.force_destroy
}

module "access" {
  source = "../access"

  name                = var.target.name
  bucket              = module.store.bucket
  prefix              = module.store.prefix
  queue_arns          = local.is_sqs ? module.queue[0].arns : null
  inputs              = concat(["${var.target.bucket}/inputs"], var.target.inputs)
  outputs             = concat(["${var.target.bucket}/outputs"], var.target.outputs)
  cluster_name        = var.platform.cluster.name
  kms_key_arns        = local.kms_key_arn[*]
  input_kms_key_arns  = var.target.input_kms_key_arns
  output_kms_key_arns = var.target.output_kms_key_arns
  partition           = data.aws_partition.current.partition
}

data "aws_partition" "current" {}

data "aws_region" "current" {}

data "aws_default_tags" "current" {}

data "aws_caller_identity" "current" {}

resource "aws_cloudwatch_log_group" "this" {
  # checkov:skip=CKV_AWS_338: a year by default; two weeks for trials (environments/dev).
  name              = "/gristmill/${var.target.name}"
  retention_in_days = var.target.log_days
  kms_key_id        = local.kms_key_arn
}

module "observability" {
  source = "../observability"

  target                 = var.target
  metric_namespace       = local.metric_namespace
  pools                  = { for key, pool in local.pools : pool.name => { service = "${var.target.name}-${key}", need = local.need_metrics[pool.name] } }
  has_container_insights = var.platform.has_container_insights
  cluster                = var.platform.cluster
  autoscaling_groups     = distinct([for group in local.gpu_groups : group.autoscaling_group])
  reducer_service        = aws_ecs_service.resident["reducer"].name
  log_group              = aws_cloudwatch_log_group.this.name
  kms_key_arn            = local.kms_key_arn
}
