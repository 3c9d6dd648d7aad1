# Scales the workers with the need for them, down to zero.
#
# Every reducer reports how many processes the admitted jobs could use now, for each kind of node: what the jobs require
# (`Requires`). It knows the limits of jobs and owners, so jobs that wait for a quota or for another job need nothing. The lines in its
# log become metrics. All reducers report the same value, so the maximum is right.
#
# Every minute with a need scaling sets the number of workers to the largest need of the last `idle_minutes`. So the number
# rises at once, and falls late. ECS does not stop busy workers: a worker protects its task while it works, and one that must
# stop finishes running mini-batches and returns the rest. Without a report (no reducer runs) the number stays.

locals {
  metric_namespace = "Gristmill/${var.target.name}"

  # Kinds of nodes that a worker of this target is, and the processes that it runs.
  kinds     = coalesce(var.target.worker.requires, concat(["any"], [for count in range(1, var.target.worker.gpus + 1) : count == 1 ? "1 GPU" : "${count} GPUs"]))
  processes = coalesce(var.target.worker.processes, local.has_gpus ? var.target.worker.gpus : max(1, floor(local.roles[local.worker_key].cpu / 1024)))

  need = [
    for kind in local.kinds : {
      namespace  = local.metric_namespace
      name       = "ProcessesWanted"
      statistic  = "Maximum"
      dimensions = { Target = var.target.name, Requires = kind }
    }
  ]

  # At most 20 steps from 1 to max workers, with similar ratios between them.
  levels = distinct([for step in range(20) : min(var.target.worker.max, ceil(pow(var.target.worker.max, step / 19)))])

  scaling = {
    follow-need = {
      says       = "Jobs could use workers: the number of workers follows."
      comparison = "GreaterThanThreshold"
      missing    = "notBreaching"
      steps = [
        for index, level in local.levels : {
          workers = level
          # The first worker beyond the previous step; the last step has no upper bound.
          from = index == 0 ? 0 : local.levels[index - 1] + 1
          to   = index == length(local.levels) - 1 ? null : level + 1
        }
      ]
    }
    rest = {
      says       = "No job could use a worker for ${var.target.worker.idle_minutes} minutes: the workers stop."
      comparison = "LessThanOrEqualToThreshold"
      missing    = "ignore"
      steps      = [{ workers = var.target.worker.min, from = null, to = 0 }]
    }
  }
}

resource "aws_appautoscaling_target" "workers" {
  service_namespace  = "ecs"
  scalable_dimension = "ecs:service:DesiredCount"
  resource_id        = "service/${var.platform.cluster.name}/${aws_ecs_service.workers[local.worker_key].name}"
  min_capacity       = var.target.worker.min
  max_capacity       = var.target.worker.max
}

resource "aws_appautoscaling_policy" "workers" {
  for_each = local.scaling

  name               = "${local.worker_name}-${each.key}"
  policy_type        = "StepScaling"
  service_namespace  = aws_appautoscaling_target.workers.service_namespace
  scalable_dimension = aws_appautoscaling_target.workers.scalable_dimension
  resource_id        = aws_appautoscaling_target.workers.resource_id

  step_scaling_policy_configuration {
    adjustment_type         = "ExactCapacity"
    metric_aggregation_type = "Maximum"
    cooldown                = 60

    dynamic "step_adjustment" {
      for_each = each.value.steps

      content {
        scaling_adjustment          = step_adjustment.value.workers
        metric_interval_lower_bound = step_adjustment.value.from
        metric_interval_upper_bound = step_adjustment.value.to
      }
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "scaling" {
  for_each = local.scaling

  alarm_name          = "${local.worker_name}-${each.key}"
  alarm_description   = "${each.value.says} Part of scaling: no action needed."
  comparison_operator = each.value.comparison
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = each.value.missing
  alarm_actions       = [aws_appautoscaling_policy.workers[each.key].arn]

  metric_query {
    id          = "workers"
    label       = "workers that jobs could use"
    expression  = "CEIL(SUM(METRICS()) / ${local.processes})"
    return_data = true
  }

  dynamic "metric_query" {
    for_each = local.need

    content {
      id          = "m${metric_query.key}"
      return_data = false

      metric {
        namespace   = metric_query.value.namespace
        metric_name = metric_query.value.name
        dimensions  = metric_query.value.dimensions
        stat        = metric_query.value.statistic
        # CloudWatch looks at it every minute: a window that slides.
        period = var.target.worker.idle_minutes * 60
      }
    }
  }
}
