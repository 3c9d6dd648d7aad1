# The ECS services: workers, which scale, and roles that always run (reducers, and optionally the portal). Workers on Fargate
# and workers with GPUs are different services: ECS cannot move a service from one kind of capacity to the other, so a change
# creates the new service beside the old one.

locals {
  has_gpus    = var.target.worker.gpus > 0
  worker_key  = local.has_gpus ? "gpu-worker" : "worker"
  worker_name = "${var.target.name}-${local.worker_key}"

  # Spot, with an on-demand minimum.
  worker_capacity = local.has_gpus ? [{ provider = var.platform.gpu.capacity_provider, base = 0, weight = 1 }] : [
    { provider = "FARGATE", base = var.target.worker.on_demand_floor, weight = var.target.worker.on_demand_percent },
    { provider = "FARGATE_SPOT", base = 0, weight = 100 - var.target.worker.on_demand_percent },
  ]

  # Roles that always run, on Fargate.
  resident = merge(
    { reducer = { count = var.target.reducer.count, group_id = local.own_group_ids.tasks, balancer = [] } },
    { for name, portal in { portal = var.target.portal } : name => { count = 1, group_id = local.own_group_ids.portal, balancer = portal.target_group_arn[*] } if portal != null },
  )
}

resource "aws_ecs_service" "workers" {
  # checkov:skip=CKV_AWS_333: only in the default network (environments/dev), as the route to AWS; nothing can connect.
  for_each = toset([local.worker_key])

  name            = "${var.target.name}-${each.key}"
  cluster         = var.platform.cluster.arn
  task_definition = aws_ecs_task_definition.role[each.key].arn
  desired_count   = var.target.worker.min

  # A deployment replaces idle workers. Above 100 percent it would start new workers beside protected busy ones: a second
  # fleet.
  deployment_minimum_healthy_percent = 0
  deployment_maximum_percent         = var.target.deployment_maximum_percent
  availability_zone_rebalancing      = "DISABLED"
  propagate_tags                     = "SERVICE"
  enable_ecs_managed_tags            = true

  # Without it the provider creates another service with the same name when the strategy changes.
  force_new_deployment = true

  dynamic "capacity_provider_strategy" {
    for_each = local.worker_capacity

    content {
      capacity_provider = capacity_provider_strategy.value.provider
      base              = capacity_provider_strategy.value.base
      weight            = capacity_provider_strategy.value.weight
    }
  }

  deployment_circuit_breaker {
    enable   = true
    rollback = true
  }

  network_configuration {
    subnets          = var.platform.subnet_ids
    security_groups  = [local.own_group_ids.tasks]
    assign_public_ip = var.target.assign_public_ip
  }

  lifecycle {
    # Scaling sets it.
    ignore_changes = [desired_count]

    precondition {
      condition     = !local.has_gpus || try(local.tasks[each.key].memory <= var.platform.gpu.memory_mib * var.target.worker.gpus && local.tasks[each.key].cpu <= var.platform.gpu.cpu_units * var.target.worker.gpus, false)
      error_message = "No instance has room for such a worker: omit `worker.memory` and `worker.cpu`, or lower them to the platform's values for each GPU (its output `platform`)."
    }

    precondition {
      condition     = !local.has_gpus || var.target.worker.disk_gib == null
      error_message = "The disk of a worker with GPUs is that of its instance: set `gpu.disk_gib` of the platform instead of `worker.disk_gib`."
    }
  }
}

# One reducer must always run, which admits jobs and reports the need for workers. Several do no harm, since no reducer owns a job.
resource "aws_ecs_service" "resident" {
  # checkov:skip=CKV_AWS_333: only in the default network (environments/dev), as the route to AWS; only clients of a portal can connect.
  for_each = local.resident

  name            = "${var.target.name}-${each.key}"
  cluster         = var.platform.cluster.arn
  task_definition = aws_ecs_task_definition.role[each.key].arn
  desired_count   = each.value.count

  # The new one runs before the old one stops.
  deployment_minimum_healthy_percent = 100
  deployment_maximum_percent         = 200
  propagate_tags                     = "SERVICE"
  enable_ecs_managed_tags            = true
  force_new_deployment               = true

  capacity_provider_strategy {
    capacity_provider = "FARGATE"
    base              = 1
    weight            = 1
  }

  deployment_circuit_breaker {
    enable   = true
    rollback = true
  }

  network_configuration {
    subnets          = var.platform.subnet_ids
    security_groups  = [each.value.group_id]
    assign_public_ip = var.target.assign_public_ip
  }

  dynamic "load_balancer" {
    for_each = each.value.balancer

    content {
      target_group_arn = load_balancer.value
      container_name   = "gristmill"
      container_port   = 9464
    }
  }
}
