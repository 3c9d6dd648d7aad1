variable "target" {
  description = "`target` of the module `target`. Its name is also that of the dashboard, and the prefix of the alarm names."
  type = object({
    name             = string
    log_days         = number
    alarm_thresholds = map(number)
    alarm_emails     = list(string)
    runbooks         = string
  })
}

variable "metric_namespace" {
  description = "CloudWatch namespace of the target's own metrics."
  type        = string
}

variable "need" {
  description = "CloudWatch metrics: processes that jobs could use on the workers of the target, one for each kind of node."
  type        = list(object({ namespace = string, name = string, statistic = string, dimensions = map(string) }))
}

variable "dead_letters" {
  description = "CloudWatch metric: the number of dead letters."
  type        = object({ namespace = string, name = string, statistic = string, dimensions = map(string) })
}

variable "has_container_insights" {
  description = "Whether Container Insights counts the tasks of the cluster."
  type        = bool
}

variable "cluster" {
  description = "The ECS cluster."
  type        = object({ arn = string, name = string })
}

variable "autoscaling_group" {
  description = "Auto scaling group of the instances that workers run on; null: they run on Fargate."
  type        = string
}

variable "services" {
  description = "Names of the ECS services."
  type        = object({ workers = string, reducer = string })
}

variable "log_group" {
  description = "Log group of all roles."
  type        = string
}

variable "kms_key_arn" {
  description = "Key that encrypts alarms and events; CloudWatch needs permission to use it. null: none."
  type        = string
}
