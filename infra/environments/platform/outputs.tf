output "platform" {
  description = "Data for targets."
  value       = module.platform.platform
}

output "parameter" {
  description = "The Systems Manager parameter with this data."
  value       = aws_ssm_parameter.platform.name
}

output "repositories" {
  description = "Repositories of the images."
  value       = module.platform.repositories
}

output "resources" {
  description = "Names and ARNs for operators: cluster, key, security groups, role of the instances, endpoints."
  value = {
    cluster            = module.platform.cluster
    kms_key_arn        = module.platform.kms_key_arn
    security_group_ids = module.platform.security_group_ids
    instance_role_arn  = module.platform.instance_role_arn
    endpoint_services  = module.platform.endpoint_services
  }
}
