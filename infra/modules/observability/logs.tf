# Lines of the roles' log as metrics that alarms count: faults of which AWS itself has no metric. Roles write them at the level
# WARN or ERROR, as JSON; an environment of the target with another GRISTMILL_LOG_FORMAT has no such metrics.
# tests/deploy/test_alarms_and_scaling.py causes each fault and reads the log.

locals {
  role_messages = {
    queue_errors     = ["cannot receive results, trying again*", "the queue is unavailable, retrying*"]
    unserved_jobs    = ["cannot commit results, trying again*", "cannot write the output, trying again*", "the job cannot be served*"]
    excluded_workers = ["Node * is excluded from the job*"]
  }
  log_metrics = {
    for name, _ in local.role_messages : name => {
      namespace  = var.metric_namespace
      name       = name
      statistic  = "Sum"
      dimensions = {}
    }
  }
}

resource "aws_cloudwatch_log_metric_filter" "roles" {
  for_each = local.role_messages

  name           = "${var.target.name}-${each.key}"
  log_group_name = var.log_group
  pattern        = "{ ${join(" || ", [for words in each.value : "($.message = \"${words}\")"])} }"

  metric_transformation {
    namespace = local.log_metrics[each.key].namespace
    name      = local.log_metrics[each.key].name
    value     = "1"
  }
}
