output "policy_arns" {
  description = "The policy of each role: worker, reducer, enqueuer, portal, operator."
  value       = { for role, policy in aws_iam_policy.role : role => policy.arn }
}

output "policies" {
  description = "The same as JSON."
  value       = { for role, policy in aws_iam_policy.role : role => policy.policy }
}

output "worker_tags" {
  description = "Tags of the services of workers, which pass them on to their tasks."
  value       = { (local.worker_tag) = var.name }
}
