output "alarm_topic_arn" {
  description = "Where alarms go; subscribe to it whatever should know."
  value       = aws_sns_topic.alarms.arn
}

output "dashboard_name" {
  description = "The CloudWatch dashboard."
  value       = aws_cloudwatch_dashboard.target.dashboard_name
}
