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

output "dead_letters_metric" {
  description = "CloudWatch metric: the number of dead letters; null: of RabbitMQ 4 Amazon MQ reports no single queues. Of 3.13 it reports the 500 with the most consumers, and this one has none."
  value = one([for metric in [{
    namespace  = "AWS/AmazonMQ"
    name       = "MessageReadyCount"
    statistic  = "Maximum"
    dimensions = { Broker = var.name, VirtualHost = "/", Queue = "${var.name}-dead-letters" }
  }] : metric if startswith(var.settings.engine_version, "3.")])
}
