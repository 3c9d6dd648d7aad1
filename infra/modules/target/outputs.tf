output "target" {
  description = "The target: `terraform output -json | gristmill target import` writes it to gristmill.toml."
  value = {
    name       = var.target.name
    queue      = local.queue
    store      = module.store.url
    region     = data.aws_region.current.id
    endpoint   = null
    management = local.is_sqs ? null : module.rabbitmq[0].broker.management
  }
}

output "policy_arns" {
  description = "Policies for users and pipelines (enqueuer, operator), and those of the roles."
  value       = module.access.policy_arns
}

output "broker" {
  description = "Input of `scripts/broker-users`; null: the queues are in SQS."
  value       = local.is_sqs ? null : module.rabbitmq[0].broker
}

output "resources" {
  description = "Names and ARNs for operators; null: there is no such resource."
  value = {
    cluster  = var.platform.cluster.name
    services = merge({ for key, _ in local.pools : key => "${var.target.name}-${key}" }, { for role, service in aws_ecs_service.resident : role => service.name })
    # The needs that start the workers of each pool.
    needs = local.needs
    # IAM roles of the tasks, and those that ECS uses to start them.
    role_arns = merge([for role in keys(local.secrets) : {
      (role)              = aws_iam_role.role["${role}-task"].arn
      "${role}_execution" = aws_iam_role.role["${role}-execution"].arn
    }]...)
    log_groups         = { roles = aws_cloudwatch_log_group.this.name, events = module.observability.event_log_group }
    security_group_ids = { tasks = local.own_group_ids.tasks, portal = try(local.own_group_ids.portal, null), broker = one(module.rabbitmq[*].security_group_id) }
    bucket             = module.store.bucket
    queue_arns         = one(module.queue[*].arns)
    kms_key_arn        = local.kms_key_arn
    dashboard          = module.observability.dashboard_name
    alarm_topic_arn    = module.observability.alarm_topic_arn
  }
}

output "fields" {
  description = "Fields of `target` and of its objects, for callers that pass it on as `any`."
  value       = { for name, value in merge({ target = var.target }, var.target, [for name, value in var.target : { for field, inner in value : "${name}.${field}" => inner } if can(keys(value))]...) : name => keys(value) if can(keys(value)) }
}
