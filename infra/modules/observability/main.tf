# What a person wants to be told, and what one wants to see: alarms and a dashboard.
#
# They stand on what AWS counts by itself, so they also see roles that are gone. What the roles tell of themselves
# (/metrics) is for Prometheus.

data "aws_region" "current" {}

locals {
  alarm_actions = [aws_sns_topic.alarms.arn]
  # As CloudWatch writes a metric in a dashboard.
  widget_metrics = {
    for name, metrics in {
      backlog      = var.metrics.backlog
      committed    = [var.metrics.committed]
      dead_letters = [var.metrics.dead_letters]
      oldest_age   = var.metrics.oldest_age[*]
      } : name => [
      for metric in metrics : concat(
        [metric.namespace, metric.name],
        flatten([for key, value in metric.dimensions : [key, value]]),
        [{ stat = metric.statistic }],
      )
    ]
  }
  services = {
    workers = var.worker_service_name
    reducer = var.reducer_service_name
  }
}

resource "aws_sns_topic" "alarms" {
  name              = "${var.name}-alarms"
  kms_master_key_id = var.kms_key_arn
}

resource "aws_sns_topic_subscription" "people" {
  for_each = toset(var.alarm_emails)

  topic_arn = aws_sns_topic.alarms.arn
  protocol  = "email"
  endpoint  = each.key
}

resource "aws_cloudwatch_metric_alarm" "oldest_task" {
  # RabbitMQ does not tell the age of a message.
  count = var.has_oldest_age ? 1 : 0

  alarm_name          = "${var.name}-oldest-task"
  alarm_description   = "A mini-batch has waited for ${var.oldest_task_minutes} minutes. Are there enough workers (max), and do they start? `gristmill status JOB` says what the job waits for."
  comparison_operator = "GreaterThanThreshold"
  threshold           = var.oldest_task_minutes * 60
  evaluation_periods  = 3
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
  ok_actions          = local.alarm_actions

  namespace   = var.metrics.oldest_age.namespace
  metric_name = var.metrics.oldest_age.name
  dimensions  = var.metrics.oldest_age.dimensions
  statistic   = var.metrics.oldest_age.statistic
  period      = 60
}

resource "aws_cloudwatch_metric_alarm" "dead_letters" {
  alarm_name          = "${var.name}-dead-letters"
  alarm_description   = "There are messages that nobody can read. `gristmill dead-letters` lists them, with the reason."
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
  ok_actions          = local.alarm_actions

  namespace   = var.metrics.dead_letters.namespace
  metric_name = var.metrics.dead_letters.name
  dimensions  = var.metrics.dead_letters.dimensions
  statistic   = var.metrics.dead_letters.statistic
  period      = 60
}

resource "aws_cloudwatch_metric_alarm" "no_progress" {
  alarm_name          = "${var.name}-no-progress"
  alarm_description   = "There is work, and no result has been committed for ${var.no_progress_minutes} minutes. Do workers start, do they find their image, are the runs just long? `gristmill status JOB` says."
  comparison_operator = "GreaterThanOrEqualToThreshold"
  threshold           = 1
  evaluation_periods  = ceil(var.no_progress_minutes / 5)
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
  ok_actions          = local.alarm_actions

  metric_query {
    id          = "stuck"
    label       = "work without results"
    expression  = "IF((SUM([${join(", ", [for index, _ in var.metrics.backlog : "b${index}"])}]) > 0) AND (FILL(committed, 0) == 0), 1, 0)"
    return_data = true
  }

  metric_query {
    id          = "committed"
    return_data = false

    metric {
      namespace   = var.metrics.committed.namespace
      metric_name = var.metrics.committed.name
      dimensions  = var.metrics.committed.dimensions
      stat        = var.metrics.committed.statistic
      period      = 300
    }
  }

  dynamic "metric_query" {
    for_each = var.metrics.backlog

    content {
      id          = "b${metric_query.key}"
      return_data = false

      metric {
        namespace   = metric_query.value.namespace
        metric_name = metric_query.value.name
        dimensions  = metric_query.value.dimensions
        # Work that was there all the time, and not for a moment.
        stat   = "Minimum"
        period = 300
      }
    }
  }
}

# ECS reports the processor time of a service as long as a task of it runs: no report, no reducer.
resource "aws_cloudwatch_metric_alarm" "reducer_down" {
  alarm_name          = "${var.name}-reducer-down"
  alarm_description   = "No reducer runs, so that no job ends. Nothing is lost: results wait in their queue. Look at the events of the service ${var.reducer_service_name}."
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  evaluation_periods  = 5
  treat_missing_data  = "breaching"
  alarm_actions       = local.alarm_actions
  ok_actions          = local.alarm_actions

  namespace   = "AWS/ECS"
  metric_name = "CPUUtilization"
  dimensions  = { ClusterName = var.cluster_name, ServiceName = var.reducer_service_name }
  statistic   = "SampleCount"
  period      = 60
}

resource "aws_cloudwatch_dashboard" "target" {
  dashboard_name = var.name

  dashboard_body = jsonencode({
    widgets = concat(
      [
        for index, widget in [
          { title = "Mini-batches that are not done", metrics = local.widget_metrics.backlog, stacked = true },
          { title = "Result messages committed", metrics = local.widget_metrics.committed, stacked = false },
          { title = "Age of the oldest task in seconds", metrics = local.widget_metrics.oldest_age, stacked = false },
          { title = "Dead letters", metrics = local.widget_metrics.dead_letters, stacked = false },
          ] : {
          type   = "metric"
          x      = 12 * (index % 2)
          y      = 6 * floor(index / 2)
          width  = 12
          height = 6
          properties = {
            title   = widget.title
            metrics = widget.metrics
            view    = "timeSeries"
            stacked = widget.stacked
            period  = 60
            region  = data.aws_region.current.name
          }
        } if length(widget.metrics) > 0
      ],
      [
        for index, resource in ["CPUUtilization", "MemoryUtilization"] : {
          type   = "metric"
          x      = 12 * index
          y      = 12
          width  = 12
          height = 6
          properties = {
            title = "${resource} in percent, and number of tasks"
            metrics = concat([
              for role, service in local.services : [
                ["AWS/ECS", resource, "ClusterName", var.cluster_name, "ServiceName", service, { stat = "Average", label = role }],
                ["AWS/ECS", resource, "ClusterName", var.cluster_name, "ServiceName", service, { stat = "SampleCount", label = "${role}, tasks", yAxis = "right" }],
              ]
            ]...)
            view   = "timeSeries"
            period = 60
            region = data.aws_region.current.name
          }
        }
      ],
      [
        {
          type   = "log"
          x      = 0
          y      = 18
          width  = 24
          height = 6
          properties = {
            title  = "Warnings and errors of the roles"
            query  = "SOURCE '${var.log_group}' | fields @timestamp, @logStream, @message | filter level in ['WARN', 'ERROR'] | sort @timestamp desc | limit 100"
            view   = "table"
            region = data.aws_region.current.name
          }
        },
        {
          type   = "alarm"
          x      = 0
          y      = 24
          width  = 24
          height = 3
          properties = {
            title = "Alarms"
            alarms = concat(
              [
                aws_cloudwatch_metric_alarm.dead_letters.arn,
                aws_cloudwatch_metric_alarm.no_progress.arn,
                aws_cloudwatch_metric_alarm.reducer_down.arn,
              ],
              aws_cloudwatch_metric_alarm.oldest_task[*].arn,
            )
          }
        },
      ],
    )
  })
}
