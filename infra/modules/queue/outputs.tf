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
    for name, metrics in {
      backlog       = [for state in ["Visible", "NotVisible", "Delayed"] : ["ApproximateNumberOfMessages${state}", "Maximum", "tasks"]]
      committed     = [["NumberOfMessagesDeleted", "Sum", "results"]]
      dead_letters  = [["ApproximateNumberOfMessagesVisible", "Maximum", "dead-letters"]]
      oldest_task   = [["ApproximateAgeOfOldestMessage", "Maximum", "tasks"]]
      oldest_result = [["ApproximateAgeOfOldestMessage", "Maximum", "results"]]
      } : name => [for metric in metrics : {
        namespace  = "AWS/SQS"
        name       = metric[0]
        statistic  = metric[1]
        dimensions = { QueueName = local.queues[metric[2]].name }
    }]
  }
}
