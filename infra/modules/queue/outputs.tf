output "address" {
  description = "`queue` of the target."
  value       = "sqs://${var.prefix}"
}

output "arns" {
  description = "ARNs of the queues."
  value = {
    tasks        = aws_sqs_queue.live["tasks"].arn
    results      = aws_sqs_queue.live["results"].arn
    dead_letters = aws_sqs_queue.dead_letters.arn
  }
}

output "metrics" {
  description = "CloudWatch metrics: unfinished mini-batches (including leased messages), deletions by reducers, dead letters, and the ages of the oldest task and result."
  value = {
    backlog = [
      for name in ["Visible", "NotVisible", "Delayed"] : {
        namespace  = "AWS/SQS"
        name       = "ApproximateNumberOfMessages${name}"
        statistic  = "Maximum"
        dimensions = { QueueName = aws_sqs_queue.live["tasks"].name }
      }
    ]
    committed = {
      namespace  = "AWS/SQS"
      name       = "NumberOfMessagesDeleted"
      statistic  = "Sum"
      dimensions = { QueueName = aws_sqs_queue.live["results"].name }
    }
    dead_letters = {
      namespace  = "AWS/SQS"
      name       = "ApproximateNumberOfMessagesVisible"
      statistic  = "Maximum"
      dimensions = { QueueName = aws_sqs_queue.dead_letters.name }
    }
    oldest_task   = { namespace = "AWS/SQS", name = "ApproximateAgeOfOldestMessage", statistic = "Maximum", dimensions = { QueueName = aws_sqs_queue.live["tasks"].name } }
    oldest_result = { namespace = "AWS/SQS", name = "ApproximateAgeOfOldestMessage", statistic = "Maximum", dimensions = { QueueName = aws_sqs_queue.live["results"].name } }
  }
}
