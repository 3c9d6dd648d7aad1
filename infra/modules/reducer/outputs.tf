output "service_name" {
  description = "The ECS service."
  value       = aws_ecs_service.reducer.name
}

output "role_arn" {
  description = "Who the reducers are at AWS."
  value       = module.task.role_arn
}
