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

variable "pools" {
  description = "Pools of workers by name: the ECS service, and CloudWatch metrics of the processes that jobs could use there."
  type = map(object({
    service = string
    need    = list(object({ namespace = string, name = string, statistic = string, dimensions = map(string) }))
  }))
}

variable "has_container_insights" {
  description = "Whether Container Insights counts the tasks of the cluster."
  type        = bool
}

variable "cluster" {
  description = "The ECS cluster."
  type        = object({ arn = string, name = string })
}

variable "autoscaling_groups" {
  description = "Auto scaling groups of the instances that workers run on."
  type        = list(string)
}

variable "reducer_service" {
  description = "Name of the ECS service of the reducers."
  type        = string
}

variable "log_group" {
  description = "Log group of all roles."
  type        = string
}

variable "kms_key_arn" {
  description = "Key that encrypts alarms and events; CloudWatch needs permission to use it. null: none."
  type        = string
}
