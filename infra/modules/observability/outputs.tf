output "alarm_topic_arn" {
  description = "Topic of the alarms, for your subscriptions."
  value       = aws_sns_topic.alarms.arn
}

output "dashboard_name" {
  description = "The CloudWatch dashboard."
  value       = aws_cloudwatch_dashboard.target.dashboard_name
}

output "event_log_group" {
  description = "Log group of ECS events about tasks."
  value       = aws_cloudwatch_log_group.events.name
}
