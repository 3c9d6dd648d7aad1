# Scales the workers with the backlog, down to zero.
#
# The backlog is every unfinished mini-batch of the task queue, including those that workers hold. With waiting messages
# alone, scaling would remove workers that have just received the last of them. Every minute with a backlog scaling sets the
# number of workers to match, so it falls with the backlog too. ECS does not stop busy workers: a worker protects its task
# while it works, and one that must stop finishes running mini-batches and returns the rest.
#
# The backlog does not include how many workers a job admits (`node_count`): see infra/COSTS.md.

locals {
  # At most 20 steps from 1 to max workers, with similar ratios between them.
  levels = distinct([for step in range(20) : min(var.target.worker.max, ceil(pow(var.target.worker.max, step / 19)))])

  scaling = {
    follow-backlog = {
      says       = "There is a backlog: the number of workers follows it."
      comparison = "GreaterThanThreshold"
      minutes    = 1
      missing    = "notBreaching"
      steps = [
        for index, level in local.levels : {
          workers = level
          # The first message beyond the previous step; the last step has no upper bound.
          from = index == 0 ? 0 : local.levels[index - 1] * var.target.worker.backlog_each + 1
          to   = index == length(local.levels) - 1 ? null : level * var.target.worker.backlog_each + 1
        }
      ]
    }
    rest = {
      says       = "There has been no backlog for ${var.target.worker.idle_minutes} minutes: the workers stop."
      comparison = "LessThanOrEqualToThreshold"
      minutes    = var.target.worker.idle_minutes
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
  evaluation_periods  = each.value.minutes
  treat_missing_data  = each.value.missing
  alarm_actions       = [aws_appautoscaling_policy.workers[each.key].arn]

  metric_query {
    id          = "backlog"
    label       = "mini-batches that are not done"
    expression  = "SUM(METRICS())"
    return_data = true
  }

  dynamic "metric_query" {
    for_each = local.metrics.backlog

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
