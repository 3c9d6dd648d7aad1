output "target" {
  description = "The target: `terraform output -json | gristmill target import` writes it to gristmill.toml."
  value       = module.target.target
}

output "repositories" {
  description = "Repositories of the images."
  value       = module.platform.repositories
}

output "policy_arns" {
  description = "Policies for users and pipelines (enqueuer, operator), and those of the roles."
  value       = module.target.policy_arns
}

output "alarm_topic_arn" {
  description = "Topic of the alarms."
  value       = module.target.alarm_topic_arn
}

output "resources" {
  description = "Names and ARNs for operators: cluster, services, roles, log groups, security groups."
  value = {
    cluster            = module.target.cluster
    services           = module.target.services
    role_arns          = module.target.role_arns
    log_groups         = module.target.log_groups
    security_group_ids = module.target.security_group_ids
  }
}
