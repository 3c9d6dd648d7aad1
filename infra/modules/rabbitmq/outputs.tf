output "address" {
  description = "`queue` of the target. Users set its user and password as BROKER_USER and BROKER_PASSWORD."
  value       = local.address
}

output "management" {
  description = "`management` of the target: the management API."
  value       = "https://${local.host}"
}

output "secret_arns" {
  description = "The secret of each role: worker, reducer, enqueuer, operator, and portal if there is one. JSON with `address`, `username` and `password`."
  value       = { for role, secret in aws_secretsmanager_secret.role : role => secret.arn }
}

output "broker" {
  description = "Input of `scripts/broker-users`."
  value = {
    management    = "https://${local.host}"
    prefix        = var.prefix
    address       = local.address
    administrator = aws_secretsmanager_secret.administrator.arn
    secrets       = { for role, secret in aws_secretsmanager_secret.role : role => secret.arn }
  }
}

output "security_group_id" {
  description = "Security group of the broker."
  value       = aws_security_group.broker.id
}

output "metrics" {
  description = "CloudWatch metrics: unfinished mini-batches in the lanes of the task queue (including unacknowledged messages), acknowledgements by reducers, and dead letters. RabbitMQ does not report the age of messages."
  value = {
    backlog = [
      # An alarm adds up ten metrics at most. This one counts ready and unacknowledged messages.
      for lane in ["", "-2", "-3", "-4", "-5", "-6", "-7", "-8"] : {
        namespace  = "AWS/AmazonMQ"
        name       = "MessageCount"
        statistic  = "Maximum"
        dimensions = { Broker = var.name, VirtualHost = "/", Queue = "${var.prefix}-tasks${lane}" }
      }
    ]
    committed = {
      namespace  = "AWS/AmazonMQ"
      name       = "AckRate"
      statistic  = "Sum"
      dimensions = { Broker = var.name }
    }
    dead_letters = {
      namespace  = "AWS/AmazonMQ"
      name       = "MessageReadyCount"
      statistic  = "Maximum"
      dimensions = { Broker = var.name, VirtualHost = "/", Queue = "${var.prefix}-dead-letters" }
    }
    oldest_task   = null
    oldest_result = null
  }
}
