variable "name" {
  description = "Name of the target and its dashboard, and prefix of the alarm names."
  type        = string
}

variable "metrics" {
  description = "CloudWatch metrics of the queues: output `metrics` of the module `queue` or `rabbitmq`."
  type        = map(list(object({ namespace = string, name = string, statistic = string, dimensions = map(string) })))
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

variable "log_days" {
  description = "Retention of task events, in days."
  type        = number
}

variable "emails" {
  description = "Mail addresses for alarms."
  type        = list(string)
}

variable "thresholds" {
  description = "`alarm_thresholds` of the target."
  type        = map(number)
}

variable "runbooks" {
  description = "URL of the runbooks, for the alarm descriptions."
  type        = string
}

variable "kms_key_arn" {
  description = "Key that encrypts alarms and events; CloudWatch needs permission to use it. null: none."
  type        = string
}
