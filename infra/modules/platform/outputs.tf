output "platform" {
  description = "Data for targets: `platform` of the module `target`."
  value = {
    cluster                = { arn = aws_ecs_cluster.this.arn, name = aws_ecs_cluster_capacity_providers.this.cluster_name }
    repositories           = local.repositories
    vpc_id                 = var.vpc_id
    subnet_ids             = var.subnet_ids
    kms_key_arn            = local.kms_key_arn
    has_container_insights = var.container_insights
    gpu = local.has_gpus ? {
      capacity_provider = aws_ecs_capacity_provider.gpu[0].name
      autoscaling_group = aws_autoscaling_group.gpu[0].name
      memory_mib        = local.gpu_share.memory_mib
      cpu_units         = local.gpu_share.cpu_units
    } : null
  }
}

output "repositories" {
  description = "Repositories by image."
  value       = local.repositories
}

output "cluster" {
  description = "The ECS cluster."
  value       = { arn = aws_ecs_cluster.this.arn, name = aws_ecs_cluster.this.name }
}

output "kms_key_arn" {
  description = "Key that encrypts everything; null: the keys that AWS manages."
  value       = local.kms_key_arn
}

output "security_group_ids" {
  description = "Security groups of the GPU instances and of the endpoints; null: none."
  value = {
    instances = one(aws_security_group.instances[*].id)
    endpoints = one(aws_security_group.endpoints[*].id)
  }
}

output "instance_role_arn" {
  description = "Role of the GPU instances; null: none."
  value       = one(aws_iam_role.instance[*].arn)
}

output "endpoint_services" {
  description = "AWS services with an endpoint in the network."
  value       = local.has_endpoints ? sort(concat(["s3"], tolist(local.endpoint_services))) : []
}
