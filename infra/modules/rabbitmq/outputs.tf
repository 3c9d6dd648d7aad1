output "broker" {
  description = "Input of `scripts/broker-users`: management API, `queue` of the target (its users set user and password as BROKER_USER and BROKER_PASSWORD), and the secrets of the administrator and of each role: JSON with `address`, `username` and `password`."
  value = {
    management    = "https://${local.host}"
    prefix        = var.name
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
    for name, metrics in {
      # An alarm adds up ten metrics at most. This one counts ready and unacknowledged messages.
      backlog       = [for lane in ["", "-2", "-3", "-4", "-5", "-6", "-7", "-8"] : ["MessageCount", "Maximum", "tasks${lane}"]]
      committed     = [["AckRate", "Sum"]]
      dead_letters  = [["MessageReadyCount", "Maximum", "dead-letters"]]
      oldest_task   = []
      oldest_result = []
      } : name => [for metric in metrics : {
        namespace  = "AWS/AmazonMQ"
        name       = metric[0]
        statistic  = metric[1]
        dimensions = merge({ Broker = var.name }, length(metric) < 3 ? {} : { VirtualHost = "/", Queue = "${var.name}-${metric[2]}" })
    }]
  }
}
