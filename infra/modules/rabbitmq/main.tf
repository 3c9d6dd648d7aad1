# The queues of a target in RabbitMQ, as Amazon MQ runs it: the alternative to SQS, for mini-batches of more than 12 hours.
#
# The queues themselves are made by whoever connects first (quorum queues), and messages that cannot be read go to
# PREFIX-dead-letters here too. A worker whose connection breaks has lost what it holds, at once.

resource "aws_mq_configuration" "this" {
  name           = var.name
  description    = "Gristmill: how long a message may be held"
  engine_type    = "RabbitMQ"
  engine_version = var.engine_version

  # As long as targets expect (`lease_seconds`), in milliseconds.
  data = "consumer_timeout = ${var.lease_seconds * 1000}"
}

resource "aws_mq_broker" "this" {
  broker_name                = var.name
  engine_type                = "RabbitMQ"
  engine_version             = var.engine_version
  host_instance_type         = var.instance_type
  deployment_mode            = var.is_cluster ? "CLUSTER_MULTI_AZ" : "SINGLE_INSTANCE"
  publicly_accessible        = false
  subnet_ids                 = var.subnet_ids
  security_groups            = [aws_security_group.broker.id]
  auto_minor_version_upgrade = true
  apply_immediately          = false

  configuration {
    id       = aws_mq_configuration.this.id
    revision = aws_mq_configuration.this.latest_revision
  }

  encryption_options {
    use_aws_owned_key = var.kms_key_arn == null
    kms_key_id        = var.kms_key_arn
  }

  logs {
    general = true
  }

  # Amazon MQ wants the password itself, so it is in the state, which is why the state is encrypted.
  user {
    username = var.username
    password = var.password
  }
}

resource "aws_security_group" "broker" {
  name        = "${var.name}-broker"
  description = "RabbitMQ of ${var.name}"
  vpc_id      = var.vpc_id

  tags = { Name = "${var.name}-broker" }
}

resource "aws_vpc_security_group_ingress_rule" "amqps" {
  security_group_id            = aws_security_group.broker.id
  description                  = "Tasks"
  referenced_security_group_id = var.client_security_group_id
  ip_protocol                  = "tcp"
  from_port                    = 5671
  to_port                      = 5671
}

resource "aws_vpc_security_group_egress_rule" "amqps" {
  security_group_id            = var.client_security_group_id
  description                  = "RabbitMQ"
  referenced_security_group_id = aws_security_group.broker.id
  ip_protocol                  = "tcp"
  from_port                    = 5671
  to_port                      = 5671
}

locals {
  # amqps://HOST:5671
  host = trimprefix(aws_mq_broker.this.instances[0].endpoints[0], "amqps://")
  path = "${local.host}/%2f?prefix=${var.prefix}"
}

# What tasks are given as GRISTMILL_QUEUE. The value is written and never read back: it is not in the state.
resource "aws_secretsmanager_secret" "queue" {
  # checkov:skip=CKV2_AWS_57: the password of the broker does not change by itself either (`password_version`).
  name                    = "${var.name}-queue"
  description             = "Address of the queues of ${var.name}, with the broker's password"
  kms_key_id              = var.kms_key_arn
  recovery_window_in_days = 7
}

resource "aws_secretsmanager_secret_version" "queue" {
  secret_id                = aws_secretsmanager_secret.queue.id
  secret_string_wo         = "amqps://${var.username}:${urlencode(var.password)}@${local.path}"
  secret_string_wo_version = var.password_version
}
