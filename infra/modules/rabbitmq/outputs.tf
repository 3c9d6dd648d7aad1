output "broker" {
  description = "Input of `scripts/broker-users`: management API, `queue` of the target (its users set user and password as BROKER_USER and BROKER_PASSWORD), and the secrets of the administrator and of each role: JSON with `address`, `username` and `password`."
  value = {
    management    = "https://${local.host}"
    prefix        = var.name
    address       = local.address
    administrator = aws_secretsmanager_secret.administrator.arn
    secrets       = { for role, secret in aws_secretsmanager_secret.role : role => secret.arn }
  }
}

output "security_group_id" {
  description = "Security group of the broker."
  value       = aws_security_group.broker.id
}
