# Workers: as many as the backlog asks for, none when there is none.
#
# The backlog is everything in the task queue that is not done, what workers hold included: counting waiting messages
# alone would take workers away that have just taken the last of them. Every minute that there is a backlog, the number of
# workers is set to what it asks for, so it falls with the backlog too. Whom ECS then stops is not left to it: a
# worker protects its task while it works, and one that is told to stop finishes what runs and gives the rest back.

locals {
  # At most 20 numbers of workers, each about as much larger than the one before: 1 … workers_max.
  levels = distinct([for step in range(20) : min(var.workers_max, ceil(pow(var.workers_max, step / 19)))])

  steps = [
    for index, level in local.levels : {
      workers = level
      # The first message beyond what the level before is for; the last level has no end.
      from = index == 0 ? 0 : local.levels[index - 1] * var.backlog_per_worker + 1
      to   = index == length(local.levels) - 1 ? null : level * var.backlog_per_worker + 1
    }
  ]
}

module "task" {
  source = "../task"

  name             = var.name
  command          = ["worker", "--grace", tostring(var.stop_seconds - 20)]
  image            = var.image
  queue            = var.queue
  queue_secret_arn = var.queue_secret_arn
  has_queue_secret = var.has_queue_secret
  store            = var.store
  variables        = { GRISTMILL_LEASE_SECONDS = tostring(var.lease_seconds) }
  policy_arn       = var.policy_arn
  kms_key_arns     = var.kms_key_arns
  log_group        = var.log_group
  cpu              = var.cpu
  memory           = var.memory
  disk_gib         = var.disk_gib
  gpus             = var.gpus
  architecture     = var.architecture
  stop_seconds     = var.stop_seconds
}

resource "aws_ecs_service" "workers" {
  # checkov:skip=CKV_AWS_333: only in the default network (environments/dev), where it is the way to AWS; nobody can connect.
  name            = var.name
  cluster         = var.cluster.arn
  task_definition = module.task.definition_arn
  desired_count   = var.workers_min

  # Workers are never waited for, a deployment replaces them as they become free, and none is moved for balance.
  deployment_minimum_healthy_percent = 0
  deployment_maximum_percent         = 200
  availability_zone_rebalancing      = "DISABLED"
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

  lifecycle {
    # Scaling decides.
    ignore_changes = [desired_count]
  }
}

resource "aws_appautoscaling_target" "workers" {
  service_namespace  = "ecs"
  scalable_dimension = "ecs:service:DesiredCount"
  resource_id        = "service/${var.cluster.name}/${aws_ecs_service.workers.name}"
  min_capacity       = var.workers_min
  max_capacity       = var.workers_max
}

resource "aws_appautoscaling_policy" "follow_backlog" {
  name               = "${var.name}-follow-backlog"
  policy_type        = "StepScaling"
  service_namespace  = aws_appautoscaling_target.workers.service_namespace
  scalable_dimension = aws_appautoscaling_target.workers.scalable_dimension
  resource_id        = aws_appautoscaling_target.workers.resource_id

  step_scaling_policy_configuration {
    adjustment_type         = "ExactCapacity"
    metric_aggregation_type = "Maximum"
    cooldown                = 60

    dynamic "step_adjustment" {
      for_each = local.steps

      content {
        scaling_adjustment          = step_adjustment.value.workers
        metric_interval_lower_bound = step_adjustment.value.from
        metric_interval_upper_bound = step_adjustment.value.to
      }
    }
  }
}

resource "aws_appautoscaling_policy" "rest" {
  name               = "${var.name}-rest"
  policy_type        = "StepScaling"
  service_namespace  = aws_appautoscaling_target.workers.service_namespace
  scalable_dimension = aws_appautoscaling_target.workers.scalable_dimension
  resource_id        = aws_appautoscaling_target.workers.resource_id

  step_scaling_policy_configuration {
    adjustment_type         = "ExactCapacity"
    metric_aggregation_type = "Maximum"
    cooldown                = 60

    step_adjustment {
      scaling_adjustment          = var.workers_min
      metric_interval_upper_bound = 0
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "backlog" {
  alarm_name          = "${var.name}-backlog"
  alarm_description   = "There is something to do: the number of workers follows it. Nobody needs to be told."
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_appautoscaling_policy.follow_backlog.arn]

  metric_query {
    id          = "backlog"
    label       = "mini-batches that are not done"
    expression  = "SUM(METRICS())"
    return_data = true
  }

  dynamic "metric_query" {
    for_each = var.backlog_metrics

    content {
      id          = "m${metric_query.key}"
      return_data = false

      metric {
        namespace   = metric_query.value.namespace
        metric_name = metric_query.value.name
        dimensions  = metric_query.value.dimensions
        stat        = metric_query.value.statistic
        period      = 60
      }
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "idle" {
  alarm_name          = "${var.name}-idle"
  alarm_description   = "There has been nothing to do for ${var.idle_minutes} minutes: workers rest. Nobody needs to be told."
  comparison_operator = "LessThanOrEqualToThreshold"
  threshold           = 0
  evaluation_periods  = var.idle_minutes
  treat_missing_data  = "ignore"
  alarm_actions       = [aws_appautoscaling_policy.rest.arn]

  metric_query {
    id          = "backlog"
    label       = "mini-batches that are not done"
    expression  = "SUM(METRICS())"
    return_data = true
  }

  dynamic "metric_query" {
    for_each = var.backlog_metrics

    content {
      id          = "m${metric_query.key}"
      return_data = false

      metric {
        namespace   = metric_query.value.namespace
        metric_name = metric_query.value.name
        dimensions  = metric_query.value.dimensions
        stat        = metric_query.value.statistic
        period      = 60
      }
    }
  }
}
