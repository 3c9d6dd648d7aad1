output "definition_arn" {
  description = "The task definition."
  value       = aws_ecs_task_definition.this.arn
}

output "role_arn" {
  description = "IAM role of the container."
  value       = aws_iam_role.this["task"].arn
}

output "role_name" {
  description = "Name of that role."
  value       = aws_iam_role.this["task"].name
}

output "execution_role_arn" {
  description = "IAM role that ECS uses to start the container."
  value       = aws_iam_role.this["execution"].arn
}
