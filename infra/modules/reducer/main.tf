# Reducers: one is enough, and always there; several do no harm, since nobody owns a job.

module "task" {
  source = "../task"

  name             = var.name
  command          = ["reducer"]
  image            = var.image
  queue            = var.queue
  queue_secret_arn = var.queue_secret_arn
  has_queue_secret = var.has_queue_secret
  store            = var.store
  policy_arn       = var.policy_arn
  kms_key_arns     = var.kms_key_arns
  log_group        = var.log_group
  cpu              = var.cpu
  memory           = var.memory
}

resource "aws_ecs_service" "reducer" {
  # checkov:skip=CKV_AWS_333: only in the default network (environments/dev), where it is the way to AWS; nobody can connect.
  name            = var.name
  cluster         = var.cluster.arn
  task_definition = module.task.definition_arn
  desired_count   = var.reducers

  # The new one is there before the old one goes.
  deployment_minimum_healthy_percent = 100
  deployment_maximum_percent         = 200
  propagate_tags                     = "SERVICE"

  dynamic "capacity_provider_strategy" {
    for_each = var.capacity

    content {
      capacity_provider = capacity_provider_strategy.value.provider
      base              = capacity_provider_strategy.value.base
      weight            = capacity_provider_strategy.value.weight
    }
  }

  network_configuration {
    subnets          = var.subnet_ids
    security_groups  = var.security_group_ids
    assign_public_ip = var.assign_public_ip
  }
}
