output "definition_arn" {
  description = "The task definition."
  value       = aws_ecs_task_definition.this.arn
}

output "role_arn" {
  description = "Who the role is at AWS."
  value       = aws_iam_role.task.arn
}
