output "policy_arns" {
  description = "The policies: attach all of them to the role of the person or pipeline."
  value       = { for part, policy in aws_iam_policy.part : part => policy.arn }
}

output "actions" {
  description = "The actions by type of resource, or by what else needs them."
  value       = local.actions
}

output "fields" {
  description = "Fields of `deployer`, for callers that pass it on as `any`."
  value       = keys(var.deployer)
}
