# ECS events about tasks that it cannot place, that fail to start, or that lose their spot capacity. ECS itself forgets a
# stopped task after an hour; this log keeps the events, and alarms count them.

locals {
  # https://docs.aws.amazon.com/AmazonECS/latest/developerguide/ecs_service_events.html
  failures = ["SERVICE_TASK_PLACEMENT_FAILURE", "SERVICE_TASK_CONFIGURATION_FAILURE", "SERVICE_TASK_START_IMPAIRED", "SERVICE_DEPLOYMENT_FAILED"]

  event_patterns = merge(
    {
      services = {
        source      = ["aws.ecs"]
        detail-type = ["ECS Service Action", "ECS Deployment State Change"]
        resources   = [for name in local.services : "${replace(var.cluster.arn, ":cluster/", ":service/")}/${name}"]
        detail      = { eventName = local.failures }
      }
      # https://docs.aws.amazon.com/AmazonECS/latest/developerguide/ecs_task_events.html
      tasks = {
        source      = ["aws.ecs"]
        detail-type = ["ECS Task State Change"]
        detail = {
          clusterArn = [var.cluster.arn]
          group      = [for name in local.services : "service:${name}"]
          lastStatus = ["STOPPED"]
        }
      }
    },
    # https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-event-reference.html
    { for name, pattern in {
      instances = {
        source      = ["aws.autoscaling"]
        detail-type = ["EC2 Instance Launch Unsuccessful"]
        detail      = { AutoScalingGroupName = var.autoscaling_groups }
      }
    } : name => pattern if length(var.autoscaling_groups) > 0 },
  )

  event_filters = {
    placement_failures = join(" || ", concat(
      [for name in local.failures : "($.detail.eventName = \"${name}\")"],
      ["($.detail-type = \"EC2 Instance Launch Unsuccessful\")"],
    ))
    reclaimed_tasks = "($.detail.stopCode = \"SpotInterruption\") || ($.detail.stopCode = \"TerminationNotice\")"
  }
  event_metrics = {
    for name, _ in local.event_filters : name => {
      namespace  = var.metric_namespace
      name       = name
      statistic  = "Sum"
      dimensions = {}
    }
  }
}

resource "aws_cloudwatch_log_group" "events" {
  # checkov:skip=CKV_AWS_338: a year by default; two weeks for trials (environments/dev).
  # EventBridge writes only to log groups below /aws/events/.
  name              = "/aws/events/gristmill/${var.target.name}"
  retention_in_days = var.target.log_days
  kms_key_id        = var.kms_key_arn
}

resource "aws_cloudwatch_event_rule" "troubles" {
  for_each = local.event_patterns

  name          = "${var.target.name}-${each.key}"
  description   = "Tasks of ${var.target.name} that could not run"
  event_pattern = jsonencode(each.value)
}

resource "aws_cloudwatch_event_target" "troubles" {
  for_each = local.event_patterns

  rule = aws_cloudwatch_event_rule.troubles[each.key].name
  arn  = aws_cloudwatch_log_group.events.arn
}

resource "aws_cloudwatch_log_metric_filter" "troubles" {
  for_each = local.event_filters

  name           = "${var.target.name}-${each.key}"
  log_group_name = aws_cloudwatch_log_group.events.name
  pattern        = "{ ${each.value} }"

  metric_transformation {
    namespace = local.event_metrics[each.key].namespace
    name      = local.event_metrics[each.key].name
    value     = "1"
  }
}
