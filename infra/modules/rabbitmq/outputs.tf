output "address" {
  description = "`queue` of the target. The password stands in the environment of who uses it, as BROKER_PASSWORD."
  value       = "amqps://${var.username}:$${BROKER_PASSWORD}@${local.path}"
}

output "secret_arn" {
  description = "Secret that holds the address with the password."
  value       = aws_secretsmanager_secret.queue.arn
}

output "metrics" {
  description = "What CloudWatch knows: everything that is not done (messages that are held among them), what the reducers take away, and dead letters. RabbitMQ does not tell the age of a message."
  value = {
    backlog = [
      for name in ["MessageReadyCount", "MessageUnacknowledgedCount"] : {
        namespace  = "AWS/AmazonMQ"
        name       = name
        statistic  = "Maximum"
        dimensions = { Broker = var.name, VirtualHost = "/", Queue = "${var.prefix}-tasks" }
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
    oldest_age = null
  }
}
