output "target" {
  description = "The target: `terraform output -json | gristmill target import` writes it to gristmill.toml."
  value = {
    name       = var.name
    queue      = local.queue
    store      = module.store.url
    region     = data.aws_region.current.id
    endpoint   = null
    management = local.is_sqs ? null : module.rabbitmq[0].management
  }
}

output "policy_arns" {
  description = "Policies for users and pipelines (enqueuer, operator), and those of the roles."
  value       = module.access.policy_arns
}

output "alarm_topic_arn" {
  description = "Topic of the alarms."
  value       = module.observability.alarm_topic_arn
}

output "broker" {
  description = "Input of `scripts/broker-users`; null: the queues are in SQS."
  value       = local.is_sqs ? null : module.rabbitmq[0].broker
}

output "cluster" {
  description = "The ECS cluster."
  value       = var.platform.cluster.name
}

output "services" {
  description = "The ECS services."
  value = merge(
    { worker = local.worker_name, reducer = aws_ecs_service.reducer.name },
    local.has_portal ? { portal = aws_ecs_service.portal[0].name } : {},
  )
}

output "role_arns" {
  description = "IAM roles of the tasks, and those that ECS uses to start them."
  value = merge(
    {
      worker            = module.task[local.worker_key].role_arn
      reducer           = module.task["reducer"].role_arn
      worker_execution  = module.task[local.worker_key].execution_role_arn
      reducer_execution = module.task["reducer"].execution_role_arn
    },
    local.has_portal ? {
      portal           = module.task["portal"].role_arn
      portal_execution = module.task["portal"].execution_role_arn
    } : {},
  )
}

output "log_groups" {
  description = "Log groups of the roles, and of ECS events about their tasks."
  value       = { roles = aws_cloudwatch_log_group.this.name, events = module.observability.event_log_group }
}

output "security_group_ids" {
  description = "Security groups of the tasks, of the portal (null: there is none), and of the broker (null: the queues are in SQS)."
  value = {
    tasks  = aws_security_group.tasks.id
    portal = one(aws_security_group.portal[*].id)
    broker = one(module.rabbitmq[*].security_group_id)
  }
}

output "bucket" {
  description = "Bucket of the store."
  value       = module.store.bucket
}

output "steps" {
  description = "Number of workers by the minimum number of mini-batches."
  value       = local.steps
}
