output "platform" {
  description = "Data for targets: `platform` of the module `target`."
  value = {
    cluster                = { arn = aws_ecs_cluster.this.arn, name = aws_ecs_cluster_capacity_providers.this.cluster_name }
    repositories           = local.repositories
    vpc_id                 = var.platform.vpc_id
    subnet_ids             = var.platform.subnet_ids
    kms_key_arn            = local.kms_key_arn
    public_egress          = var.platform.public_egress
    endpoints              = local.has_endpoints ? { security_group_id = one(aws_security_group.endpoints[*].id), s3_prefix_list_id = one(aws_vpc_endpoint.s3[*].prefix_list_id) } : null
    has_container_insights = var.platform.container_insights
    gpu_groups = { for name, share in local.gpu_shares : name => merge(share, {
      capacity_provider = aws_ecs_capacity_provider.gpu[name].name
      autoscaling_group = aws_autoscaling_group.gpu[name].name
    }) }
  }
}

output "repositories" {
  description = "Repositories by image."
  value       = local.repositories
}

output "resources" {
  description = "Names and ARNs for operators: cluster, key, security groups, role of the instances, endpoints; null: there is no such resource."
  value = {
    cluster            = { arn = aws_ecs_cluster.this.arn, name = aws_ecs_cluster.this.name }
    kms_key_arn        = local.kms_key_arn
    security_group_ids = { instances = one(aws_security_group.instances[*].id), endpoints = one(aws_security_group.endpoints[*].id) }
    instance_role_arn  = one(aws_iam_role.instance[*].arn)
    endpoint_services  = local.has_endpoints ? sort(concat(["s3"], tolist(local.endpoint_services))) : []
  }
}

output "fields" {
  description = "Fields of `platform` and of its objects, for callers that pass it on as `any`."
  value       = { for name, value in merge({ platform = var.platform }, var.platform, [for name, value in var.platform : { for field, inner in value : "${name}.${field}" => inner } if can(keys(value))]...) : name => keys(value) if can(keys(value)) }
}
