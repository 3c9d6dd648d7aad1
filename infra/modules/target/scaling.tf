# Scales each pool of workers with the need for it, down to zero.
#
# Every reducer reports how many processes the admitted jobs could use now, for each kind of node: what the jobs require
# (`Requires`). It knows the limits of jobs and owners, so jobs that wait for a quota or for another job need nothing. The lines in its
# log become metrics. All reducers report the same value, so the maximum is right.
#
# A need starts workers of one pool, also if workers of others meet it: two pools would start twice as many workers. It is the pool
# that names the need in `requires`, else the plainest that meets it: of those with the fewest GPUs those with the fewest labels, of these
# the smallest, of these the first by name. A need that no pool meets starts nothing.
#
# Every minute with a need scaling sets the number of workers to the largest need of the last `idle_minutes`. So the number
# rises at once, and falls late. ECS does not stop busy workers: a worker protects its task while it works, and one that must
# stop finishes running mini-batches and returns the rest. Without a report (no reducer runs) the number stays.

locals {
  metric_namespace = "Gristmill/${var.target.name}"

  # What the GPUs and labels of a pool meet, as `Requires` has it: `1 GPU, label a=b, label c=d`. Each label doubles the number of
  # needs; a pool whose needs would exceed the limit of an alarm names its own.
  met_by_labels = { for key, pool in local.pools : pool.name => [
    for bits in range(pow(2, min(6, length(pool.labels)))) : [
      for index, name in keys(pool.labels) : "label ${name}=${pool.labels[name]}" if floor(bits / pow(2, index)) % 2 == 1
    ]
  ] }
  met = { for key, pool in local.pools : pool.name => [
    for pair in setproduct(range(min(64, pool.gpus) + 1), range(length(local.met_by_labels[pool.name]))) : join(", ", concat(
      pair[0] == 0 ? [] : [pair[0] == 1 ? "1 GPU" : "${pair[0]} GPUs"],
      local.met_by_labels[pool.name][pair[1]],
      pair[0] + pair[1] == 0 ? ["any"] : [],
    ))
  ] }

  # Processes that a worker of each pool runs.
  processes = { for key, pool in local.pools : key => coalesce(pool.processes, pool.gpus > 0 ? pool.gpus : max(1, floor(local.roles[key].cpu / 1024))) }

  # The plainest pool first.
  by_plainness = [for key in sort([for key, pool in local.pools : format("%03d %03d %09d %09d %s", pool.gpus, length(pool.labels), coalesce(pool.cpu, 4096), coalesce(pool.memory, 16384), pool.name)]) : split(" ", key)[4]]
  named        = flatten([for pool in var.target.workers : coalesce(pool.requires, [])])
  needs = { for index, name in local.by_plainness : name => var.target.workers[name].requires != null ? var.target.workers[name].requires : tolist(setsubtract(
    local.met[name],
    concat(local.named, flatten([for plainer in slice(local.by_plainness, 0, index) : local.met[plainer] if var.target.workers[plainer].requires == null])),
  )) }

  need_metrics = { for name, needs in local.needs : name => [
    for need in needs : {
      namespace  = local.metric_namespace
      name       = "ProcessesWanted"
      statistic  = "Maximum"
      dimensions = { Target = var.target.name, Requires = need }
    }
  ] }
  # Reducers always report the need for any node. A need that no job had since they started has no report, and counts as none; without
  # the former, and so without a reducer, there is no value.
  any_metric = { namespace = local.metric_namespace, name = "ProcessesWanted", statistic = "Maximum", dimensions = { Target = var.target.name, Requires = "any" } }
  added = { for name, metrics in local.need_metrics : name => merge(
    { any_node = local.any_metric },
    { for index, metric in metrics : "n${index}" => metric if metric.dimensions.Requires != "any" },
  ) }
  sums = { for name, metrics in local.need_metrics : name => join(" + ", [
    for id, metric in local.added[name] : id != "any_node" ? "FILL(${id}, 0)" : contains(local.needs[name], "any") ? id : "0 * ${id}"
  ]) }

  scaling = merge([for key, pool in local.pools : {
    "${key}-follow-need" = merge(local.follow[key], {
      key  = key
      pool = pool
      says = "Jobs could use workers of the pool ${pool.name}: their number follows."
    })
    "${key}-rest" = {
      key        = key
      pool       = pool
      says       = "No job could use a worker of the pool ${pool.name} for ${pool.idle_minutes} minutes: the workers stop."
      comparison = "LessThanOrEqualToThreshold"
      missing    = "ignore"
      steps      = [{ workers = pool.min, from = null, to = 0 }]
    }
  }]...)

  # At most 20 steps from 1 to max workers, with similar ratios between them.
  levels = { for key, pool in local.pools : key => distinct([for step in range(20) : min(pool.max, ceil(pow(pool.max, step / 19)))]) }
  follow = { for key, levels in local.levels : key => {
    comparison = "GreaterThanThreshold"
    missing    = "notBreaching"
    steps = [
      for index, level in levels : {
        workers = level
        # The first worker beyond the previous step; the last step has no upper bound.
        from = index == 0 ? 0 : levels[index - 1] + 1
        to   = index == length(levels) - 1 ? null : level + 1
      }
    ]
  } }
}

resource "aws_appautoscaling_target" "workers" {
  for_each = local.pools

  service_namespace  = "ecs"
  scalable_dimension = "ecs:service:DesiredCount"
  resource_id        = "service/${var.platform.cluster.name}/${aws_ecs_service.workers[each.key].name}"
  min_capacity       = each.value.min
  max_capacity       = each.value.max
}

resource "aws_appautoscaling_policy" "workers" {
  for_each = local.scaling

  name               = "${var.target.name}-${each.key}"
  policy_type        = "StepScaling"
  service_namespace  = aws_appautoscaling_target.workers[each.value.key].service_namespace
  scalable_dimension = aws_appautoscaling_target.workers[each.value.key].scalable_dimension
  resource_id        = aws_appautoscaling_target.workers[each.value.key].resource_id

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

  alarm_name          = "${var.target.name}-${each.key}"
  alarm_description   = "${each.value.says} Part of scaling: no action needed."
  comparison_operator = each.value.comparison
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = each.value.missing
  alarm_actions       = [aws_appautoscaling_policy.workers[each.key].arn]

  metric_query {
    id          = "workers"
    label       = "workers that jobs could use"
    expression  = "CEIL((${local.sums[each.value.pool.name]}) / ${local.processes[each.value.key]})"
    return_data = true
  }

  dynamic "metric_query" {
    for_each = local.added[each.value.pool.name]

    content {
      id          = metric_query.key
      return_data = false

      metric {
        namespace   = metric_query.value.namespace
        metric_name = metric_query.value.name
        dimensions  = metric_query.value.dimensions
        stat        = metric_query.value.statistic
        # CloudWatch looks at it every minute: a window that slides.
        period = each.value.pool.idle_minutes * 60
      }
    }
  }
}
