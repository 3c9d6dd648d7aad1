output "service_name" {
  description = "The ECS service."
  value       = aws_ecs_service.workers.name
}

output "role_arn" {
  description = "Who the workers are at AWS."
  value       = module.task.role_arn
}

output "steps" {
  description = "How many workers there are from how many mini-batches on."
  value       = local.steps
}
