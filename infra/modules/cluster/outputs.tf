output "cluster" {
  description = "The cluster. Known once its capacity providers are."
  value = {
    arn  = aws_ecs_cluster.this.arn
    name = aws_ecs_cluster_capacity_providers.this.cluster_name
  }
}

output "repositories" {
  description = "Where images are pushed to, by image."
  value       = { for image, repository in aws_ecr_repository.image : image => repository.repository_url }
}

output "log_group" {
  description = "Log group of all roles."
  value       = aws_cloudwatch_log_group.this.name
}

output "security_group_id" {
  description = "Security group of the tasks."
  value       = aws_security_group.tasks.id
}

output "worker_capacity" {
  description = "Capacity for workers: spot, with the floor on demand."
  value = [
    { provider = "FARGATE", base = var.on_demand_floor, weight = var.on_demand_percent },
    { provider = "FARGATE_SPOT", base = 0, weight = 100 - var.on_demand_percent },
  ]
}

output "gpu_capacity" {
  description = "Capacity for workers with GPUs, of which the instances are spot; null: there are none."
  value       = local.has_gpus ? [{ provider = aws_ecs_capacity_provider.gpu[0].name, base = 0, weight = 1 }] : null
}

output "reducer_capacity" {
  description = "Capacity for reducers: on demand, since one is always there."
  value       = [{ provider = "FARGATE", base = 1, weight = 1 }]
}
