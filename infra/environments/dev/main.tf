# A fleet to try things with: SQS, in the default network of the account, nothing that costs while nothing is to do but
# one reducer. `terraform destroy` leaves nothing behind.

provider "aws" {
  region = var.region

  default_tags {
    tags = { Application = "gristmill", Target = var.name }
  }
}

data "aws_caller_identity" "current" {}

data "aws_vpc" "default" {
  default = true
}

data "aws_subnets" "default" {
  filter {
    name   = "vpc-id"
    values = [data.aws_vpc.default.id]
  }
}

locals {
  bucket = coalesce(var.bucket, "${var.name}-${data.aws_caller_identity.current.account_id}")
}

module "queue" {
  source = "../../modules/queue"

  prefix = var.name
}

module "store" {
  source = "../../modules/store"

  bucket        = local.bucket
  prefix        = var.name
  job_days      = 30
  force_destroy = true
}

module "cluster" {
  source = "../../modules/cluster"

  name               = var.name
  vpc_id             = data.aws_vpc.default.id
  log_days           = 14
  images_kept        = 5
  container_insights = false
  force_destroy      = true
  on_demand_floor    = 0
}

module "access" {
  source = "../../modules/access"

  name         = var.name
  bucket       = module.store.bucket
  prefix       = module.store.prefix
  queue_arns   = module.queue.arns
  inputs       = concat(["${local.bucket}/inputs"], var.inputs)
  outputs      = concat(["${local.bucket}/outputs"], var.outputs)
  cluster_name = module.cluster.cluster.name
}

module "workers" {
  source = "../../modules/workers"

  name               = "${var.name}-worker"
  cluster            = module.cluster.cluster
  capacity           = module.cluster.worker_capacity
  image              = "${module.cluster.repositories["gristmill-worker"]}:${var.image_tag}"
  queue              = module.queue.address
  store              = module.store.url
  policy_arn         = module.access.policy_arns["worker"]
  log_group          = module.cluster.log_group
  subnet_ids         = data.aws_subnets.default.ids
  security_group_ids = [module.cluster.security_group_id]
  assign_public_ip   = true
  workers_max        = var.workers_max
  backlog_per_worker = var.backlog_per_worker
  backlog_metrics    = module.queue.metrics.backlog
}

module "reducer" {
  source = "../../modules/reducer"

  name               = "${var.name}-reducer"
  cluster            = module.cluster.cluster
  capacity           = module.cluster.reducer_capacity
  image              = "${module.cluster.repositories["gristmill"]}:${var.image_tag}"
  queue              = module.queue.address
  store              = module.store.url
  policy_arn         = module.access.policy_arns["reducer"]
  log_group          = module.cluster.log_group
  subnet_ids         = data.aws_subnets.default.ids
  security_group_ids = [module.cluster.security_group_id]
  assign_public_ip   = true
  cpu                = 512
  memory             = 1024
}

module "observability" {
  source = "../../modules/observability"

  name                 = var.name
  metrics              = module.queue.metrics
  cluster_name         = module.cluster.cluster.name
  worker_service_name  = module.workers.service_name
  reducer_service_name = module.reducer.service_name
  log_group            = module.cluster.log_group
  alarm_emails         = var.alarm_emails
}
