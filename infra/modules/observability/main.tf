# Alarms and a dashboard.
#
# They use metrics of AWS itself, so they also notice roles that have stopped, what reducers report of the need for workers, and
# lines of the roles' log. Prometheus reads the roles' own metrics (/metrics), among them whether jobs make progress. An alarm of the
# same fault has the same name there. infra/RUNBOOKS.md has a section for each alarm.

data "aws_region" "current" {}

locals {
  services = concat([for pool in var.pools : pool.service], [var.reducer_service])

  # CloudWatch's notation of a metric in a dashboard.
  widget_metrics = {
    for name, metrics in { dead_letters = [local.dead_letters], troubles = values(local.event_metrics) } : name => [
      for metric in metrics : concat(
        [metric.namespace, metric.name],
        flatten([for key, value in metric.dimensions : [key, value]]),
        [{ stat = metric.statistic }],
      )
    ]
  }
  # Every kind of node, also those that no worker of this target is.
  need_search = "SEARCH('{\"${var.metric_namespace}\",Requires,Target} MetricName=\"ProcessesWanted\"', 'Maximum', 60)"

  # Each alarm on an expression of metrics, or on its only metric. `looks` periods in a row must breach it. Alarms about workers exist
  # for each pool, and share the section `runbook`.
  one_minute = { period = 60, looks = 1, missing = "notBreaching" }
  alarms = merge(
    {
      dead-letters = merge(local.one_minute, {
        says    = "There are messages that no role can read. `gristmill dead-letters` lists them with their reasons."
        metrics = { letters = local.dead_letters }
        above   = var.target.alarm_thresholds.dead_letters
      })
      # ECS reports the processor time of a service while one of its tasks runs: without a report no reducer runs.
      reducer-down = {
        says    = "No reducer runs, so no job begins or ends, and workers do not scale. Nothing is lost: results wait in the queues of their jobs. Look at the events of the service ${var.reducer_service}."
        metrics = { reports = merge(local.reports, { dimensions = { ClusterName = var.cluster.name, ServiceName = var.reducer_service } }) }
        below   = 1
        period  = 60
        looks   = 5
        missing = "breaching"
      }
      jobs-blocked = merge(local.one_minute, {
        says    = "Jobs wait for workers that the target does not have: no worker meets `requires`, or none can prepare the job. `gristmill jobs` shows which jobs, and what they lack."
        metrics = { jobs = merge(local.of_target, { name = "JobsBlocked", statistic = "Maximum" }) }
        above   = 0
        looks   = 15
      })
      no-progress = {
        says       = "Jobs are open, and none of their mini-batches has ended for ${var.target.alarm_thresholds.no_progress_minutes} minutes. `gristmill status JOB` shows what a job waits for."
        expression = "IF((unfinished > 0) AND (FILL(ended, 0) == 0), 1, 0)"
        metrics = {
          unfinished = merge(local.of_target, { name = "MiniBatchesUnfinished", statistic = "Maximum" })
          ended      = merge(local.of_target, { name = "MiniBatchesEnded", statistic = "Sum" })
        }
        above   = 0
        period  = 300
        looks   = var.target.alarm_thresholds.no_progress_minutes / 5
        missing = "notBreaching"
      }
      # A role that does not reach its queue tries again after at most 20 seconds.
      queue-errors = {
        says    = "Workers or reducers cannot use the queues of jobs: an outage of the broker or the network, a password, or permissions. `gristmill doctor` finds problems of the target."
        metrics = { errors = local.log_metrics.queue_errors }
        above   = 5
        period  = 300
        looks   = 2
        missing = "notBreaching"
      }
      results-not-committed = merge(local.one_minute, {
        says    = "A reducer cannot write results or serve a job; results wait in the queues. Its log has the job and the reason: permissions, a key, a full disk."
        metrics = { failures = local.log_metrics.unserved_jobs }
        above   = 0
        period  = 900
      })
      worker-fails = merge(local.one_minute, {
        says    = "A job has excluded a worker, because mini-batches fail there that succeed on others. `gristmill status JOB` names the worker and the error."
        metrics = { exclusions = local.log_metrics.excluded_workers }
        above   = 0
        period  = 900
      })
      placement-failed = merge(local.one_minute, {
        says    = "ECS could not place or start tasks, or a deployment failed: no capacity, a quota, a missing image or a missing secret. Log group ${aws_cloudwatch_log_group.events.name} has the reason."
        metrics = { failures = local.event_metrics.placement_failures }
        above   = var.target.alarm_thresholds.placement_failures
        period  = 900
      })
      spot-reclaimed = merge(local.one_minute, {
        says    = "AWS has reclaimed spot capacity of many workers. Jobs continue later. Raise `on_demand_floor` or `on_demand_percent` if this persists."
        metrics = { reclaimed = local.event_metrics.reclaimed_tasks }
        above   = var.target.alarm_thresholds.reclaimed_tasks
        period  = 3600
      })
    },
    { for name, pool in var.pools : "no-worker-${name}" => {
      runbook    = "no-worker"
      says       = "Jobs could use workers of the pool ${name}, and none has run for ${var.target.alarm_thresholds.no_worker_minutes} minutes. Do their tasks start and find their image? Is there capacity?"
      expression = "IF((${join(" + ", [for index, _ in pool.need : "FILL(n${index}, 0)"])} > 0) AND (FILL(workers, 0) == 0), 1, 0)"
      metrics = merge(
        { workers = merge(local.reports, { dimensions = { ClusterName = var.cluster.name, ServiceName = pool.service } }) },
        { for index, metric in pool.need : "n${index}" => metric },
      )
      above   = 0
      period  = 300
      looks   = ceil(var.target.alarm_thresholds.no_worker_minutes / 5)
      missing = "notBreaching"
    } },
    # Tasks that should run and do not, for any reason. Container Insights counts them.
    { for name, pool in var.pools : "workers-missing-${name}" => merge(local.one_minute, {
      runbook    = "workers-missing"
      says       = "For ${var.target.alarm_thresholds.missing_minutes} minutes more than ${var.target.alarm_thresholds.missing_percent} percent of the workers of the pool ${name} that scaling asks for have not been running: a shortage of spot capacity, a quota, or tasks that fail to start."
      expression = "IF(desired > 0, 100 * (desired - running) / desired, 0)"
      metrics = {
        for id, metric in { desired = "DesiredTaskCount", running = "RunningTaskCount" } : id => {
          namespace                 = "ECS/ContainerInsights"
          name                      = metric
          statistic                 = "Average"
          dimensions                = { ClusterName = var.cluster.name, ServiceName = pool.service }
        }
      }
      above = var.target.alarm_thresholds.missing_percent
      looks = var.target.alarm_thresholds.missing_minutes
    }) if var.has_container_insights },
  )
  of_target    = { namespace = var.metric_namespace, dimensions = { Target = var.target.name } }
  dead_letters = merge(local.of_target, { name = "DeadLetters", statistic = "Maximum" })
  reports      = { namespace = "AWS/ECS", name = "CPUUtilization", statistic = "SampleCount" }
}

resource "aws_sns_topic" "alarms" {
  name              = "${var.target.name}-alarms"
  kms_master_key_id = var.kms_key_arn
}

resource "aws_sns_topic_subscription" "people" {
  for_each = toset(var.target.alarm_emails)

  topic_arn = aws_sns_topic.alarms.arn
  protocol  = "email"
  endpoint  = each.key
}

resource "aws_cloudwatch_metric_alarm" "metric" {
  for_each = local.alarms

  alarm_name          = "${var.target.name}-${each.key}"
  alarm_description   = "${each.value.says} Runbook: ${var.target.runbooks}#${try(each.value.runbook, each.key)}"
  comparison_operator = can(each.value.below) ? "LessThanThreshold" : "GreaterThanThreshold"
  threshold           = try(each.value.below, each.value.above)
  evaluation_periods  = each.value.looks
  treat_missing_data  = each.value.missing
  alarm_actions       = [aws_sns_topic.alarms.arn]
  ok_actions          = [aws_sns_topic.alarms.arn]

  dynamic "metric_query" {
    for_each = try([each.value.expression], [])

    content {
      id          = "value"
      label       = each.key
      expression  = metric_query.value
      return_data = true
    }
  }

  dynamic "metric_query" {
    for_each = each.value.metrics

    content {
      id          = metric_query.key
      return_data = !can(each.value.expression)

      metric {
        namespace   = metric_query.value.namespace
        metric_name = metric_query.value.name
        dimensions  = metric_query.value.dimensions
        stat        = metric_query.value.statistic
        period      = each.value.period
      }
    }
  }
}

locals {
  graphs = concat(
    [
      {
        title   = "Processes that jobs could use, by what they require"
        metrics = [[{ expression = local.need_search, id = "need", label = "" }]]
        stacked = true
      },
      { title = "Dead letters", metrics = local.widget_metrics.dead_letters, stacked = false },
      { title = "Tasks that were not placed, and tasks that lost their spot capacity", metrics = local.widget_metrics.troubles, stacked = true },
    ],
    [
      for resource in ["CPUUtilization", "MemoryUtilization"] : {
        title = "${resource} in percent, and number of tasks"
        metrics = concat([
          for service in local.services : [
            ["AWS/ECS", resource, "ClusterName", var.cluster.name, "ServiceName", service, { stat = "Average", label = service }],
            ["AWS/ECS", resource, "ClusterName", var.cluster.name, "ServiceName", service, { stat = "SampleCount", label = "${service}, tasks", yAxis = "right" }],
          ]
        ]...)
        stacked = false
      }
    ],
  )
}

resource "aws_cloudwatch_dashboard" "target" {
  dashboard_name = var.target.name

  # CloudWatch places them one after the other.
  dashboard_body = jsonencode({
    widgets = concat(
      [
        for graph in local.graphs : {
          type       = "metric"
          width      = 12
          height     = 6
          properties = merge(graph, { view = "timeSeries", period = 60, region = data.aws_region.current.id })
        } if length(graph.metrics) > 0
      ],
      [
        {
          type   = "log"
          width  = 24
          height = 6
          properties = {
            title  = "Warnings and errors of the roles"
            query  = "SOURCE '${var.log_group}' | fields @timestamp, @logStream, @message | filter level in ['WARN', 'ERROR'] | sort @timestamp desc | limit 100"
            view   = "table"
            region = data.aws_region.current.id
          }
        },
        {
          type       = "alarm"
          width      = 24
          height     = 3
          properties = { title = "Alarms", alarms = [for name in sort(keys(local.alarms)) : aws_cloudwatch_metric_alarm.metric[name].arn] }
        },
      ],
    )
  })
}
