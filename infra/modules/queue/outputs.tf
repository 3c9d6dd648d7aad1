output "address" {
  description = "`queue` of the target."
  value       = "sqs://${var.prefix}"
}

output "arns" {
  description = "ARNs of the queues of the target itself. Those of its jobs begin like the first, without `control`."
  value = {
    control      = aws_sqs_queue.own["control"].arn
    dead_letters = aws_sqs_queue.own["dead-letters"].arn
  }
}
