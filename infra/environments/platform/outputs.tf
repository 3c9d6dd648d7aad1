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
  value       = module.platform.resources

  # Terraform itself ignores unknown fields of objects.
  precondition {
    condition     = length(local.unknown_fields) == 0
    error_message = "Unknown fields: ${join("; ", local.unknown_fields)}."
  }
}
