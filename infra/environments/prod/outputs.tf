output "target" {
  description = "The target: `terraform output -json | gristmill target import` writes it to gristmill.toml."
  value       = module.target.target
}

output "repositories" {
  description = "Repositories of the images."
  value       = local.platform.repositories
}

output "policy_arns" {
  description = "Policies for users and pipelines (enqueuer, operator), and those of the roles."
  value       = module.target.policy_arns
}

output "resources" {
  description = "Names and ARNs for operators and pipelines: cluster, services, roles, log groups, security groups, bucket, queues, key, dashboard, topic of the alarms."
  value       = module.target.resources

  # Terraform itself ignores unknown fields of objects.
  precondition {
    condition     = length(local.unknown_fields) == 0
    error_message = "Unknown fields: ${join("; ", local.unknown_fields)}."
  }
}

output "broker" {
  description = "Input of `scripts/broker-users`; null: the queues are in SQS."
  value       = module.target.broker
}
