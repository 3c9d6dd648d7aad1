output "target" {
  description = "The target: `terraform output -json | gristmill target import` writes it to gristmill.toml."
  value = {
    name     = var.name
    queue    = module.queue.address
    store    = module.store.url
    region   = var.region
    endpoint = null
  }
}

output "repositories" {
  description = "Where the images are pushed to."
  value       = module.cluster.repositories
}

output "policy_arns" {
  description = "Policies for people and pipelines (enqueuer, operator), and those of the roles."
  value       = module.access.policy_arns
}

output "alarm_topic_arn" {
  description = "Where alarms go."
  value       = module.observability.alarm_topic_arn
}
