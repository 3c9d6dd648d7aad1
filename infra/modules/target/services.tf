# The ECS services: pools of workers, which scale, and roles that always run (reducers, and optionally the portal). The name of a
# pool's service says whether it has GPUs: ECS cannot move a service between Fargate and instances, so a change creates another
# service beside the old one.

locals {
  pools = { for name, pool in var.target.workers : "${pool.gpus > 0 ? "gpu-" : ""}worker-${name}" => merge(pool, { name = name }) }

  gpu_groups = { for key, pool in local.pools : key => var.platform.gpu_groups[pool.gpu_group != null ? pool.gpu_group : one(keys(var.platform.gpu_groups))] if pool.gpus > 0 }

  # Spot, with an on-demand minimum. ECS accepts no provider whose weight is 0.
  capacity = { for key, pool in local.pools : key => pool.gpus > 0 ? [{ provider = local.gpu_groups[key].capacity_provider, base = 0, weight = 1 }] : [
    for part in [
      { provider = "FARGATE", base = pool.on_demand_percent < 100 ? pool.on_demand_floor : 0, weight = pool.on_demand_percent },
      { provider = "FARGATE_SPOT", base = 0, weight = 100 - pool.on_demand_percent },
    ] : part if part.weight > 0
  ] }

  # Roles that always run, on Fargate.
  resident = merge(
    { reducer = { count = var.target.reducer.count, group_id = local.own_group_ids.tasks, balancer = [] } },
    { for name, portal in { portal = var.target.portal } : name => { count = 1, group_id = local.own_group_ids.portal, balancer = portal.target_group_arn[*] } if portal != null },
  )
}

resource "aws_ecs_service" "workers" {
  # checkov:skip=CKV_AWS_333: only in the default network (environments/dev), as the route to AWS; nothing can connect.
  for_each = local.pools

  name            = "${var.target.name}-${each.key}"
  cluster         = var.platform.cluster.arn
  task_definition = aws_ecs_task_definition.role[each.key].arn
  desired_count   = each.value.min

  # A deployment replaces idle workers. Above 100 percent it would start new workers beside protected busy ones: a second
  # fleet.
  deployment_minimum_healthy_percent = 0
  deployment_maximum_percent         = var.target.deployment_maximum_percent
  availability_zone_rebalancing      = "DISABLED"
  propagate_tags                     = "SERVICE"
  enable_ecs_managed_tags            = true
  tags                               = module.access.worker_tags

  # Without it the provider creates another service with the same name when the strategy changes.
  force_new_deployment = true

  dynamic "capacity_provider_strategy" {
    for_each = local.capacity[each.key]

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
      condition     = each.value.gpus == 0 || try(local.tasks[each.key].memory <= local.gpu_groups[each.key].memory_mib * each.value.gpus && local.tasks[each.key].cpu <= local.gpu_groups[each.key].cpu_units * each.value.gpus, false)
      error_message = "No instance has room for a worker of the pool ${each.value.name}: omit its `memory` and `cpu`, or lower them to the platform's values for each GPU (its output `platform`)."
    }

    precondition {
      condition     = each.value.gpus == 0 || each.value.disk_gib == null
      error_message = "The disk of a worker with GPUs is that of its instance: set `disk_gib` of its group in the platform instead of `disk_gib` of the pool ${each.value.name}."
    }

    precondition {
      condition     = length(local.needs[each.value.name]) > 0
      error_message = "Nothing would start workers of the pool ${each.value.name}: a plainer pool serves all that its GPUs and labels meet. Give it labels, or name its needs in `requires`."
    }

    precondition {
      # An alarm takes ten metrics, and one is not a need.
      condition     = length(local.needs[each.value.name]) <= 9
      error_message = "An alarm adds up nine needs, and the GPUs and labels of the pool ${each.value.name} meet ${length(local.needs[each.value.name])}: name those that jobs have in its `requires`."
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
