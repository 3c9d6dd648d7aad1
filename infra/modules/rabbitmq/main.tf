# The broker of a target, RabbitMQ on Amazon MQ: the alternative to SQS, for mini-batches of more than 12 hours.
#
# `gristmill doctor --create` makes PREFIX-control and PREFIX-dead-letters. Reducers create the two quorum queues of each job that
# may run, and delete them when it has ended. A worker whose connection breaks immediately loses its mini-batches.
#
# Terraform creates the broker and its administrator. It cannot create or change other users, or change the administrator's
# password: Amazon MQ has no API for that, and the provider ignores such changes. `scripts/broker-users` uses the broker's
# management API instead: it creates a user with minimal permissions for each role, and writes its address into the role's
# secret.

locals {
  host = trimsuffix(trimprefix(aws_mq_broker.this.instances[0].endpoints[0], "amqps://"), ":5671")
  # Without user and password: outputs contain neither.
  address = "amqps://$${BROKER_USER}:$${BROKER_PASSWORD}@${local.host}:5671/%2f?prefix=${var.name}&lease_seconds=${var.settings.lease_seconds}"

  roles = toset(concat(["worker", "reducer", "enqueuer", "operator"], var.has_portal ? ["portal"] : []))
  # AMQP, and the management API, which Amazon MQ serves on two ports.
  ports = [5671, 443, 15671]
  clients = merge(
    { for name, group in var.client_security_group_ids : name => { group = group, range = null } },
    { for range in var.settings.client_cidr_blocks : range => { group = null, range = range } },
  )
  doors = { for pair in setproduct(keys(local.clients), local.ports) : "${pair[0]}-${pair[1]}" => merge(local.clients[pair[0]], { port = pair[1] }) }
}

resource "aws_mq_configuration" "this" {
  # checkov:skip=CKV_AWS_208: the caller chooses one of the versions that Amazon MQ supports.
  name           = var.name
  description    = "Gristmill: consumer timeout"
  engine_type    = "RabbitMQ"
  engine_version = var.settings.engine_version

  # In milliseconds. The processes of the target get the same value as `lease_seconds` of the address.
  data = "consumer_timeout = ${var.settings.lease_seconds * 1000}"
}

# Amazon MQ encrypts RabbitMQ brokers with its own key, and rejects `encryption_options` for them.
resource "aws_mq_broker" "this" {
  # checkov:skip=CKV_AWS_208: the caller chooses one of the versions that Amazon MQ supports.
  # checkov:skip=CKV_AWS_209: Amazon MQ accepts no key for RabbitMQ brokers, and uses its own.
  broker_name                = var.name
  engine_type                = "RabbitMQ"
  engine_version             = var.settings.engine_version
  host_instance_type         = var.settings.instance_type
  deployment_mode            = var.settings.is_cluster ? "CLUSTER_MULTI_AZ" : "SINGLE_INSTANCE"
  publicly_accessible        = false
  subnet_ids                 = var.settings.is_cluster ? var.subnet_ids : slice(var.subnet_ids, 0, 1)
  security_groups            = [aws_security_group.broker.id]
  auto_minor_version_upgrade = true
  apply_immediately          = false

  configuration {
    id       = aws_mq_configuration.this.id
    revision = aws_mq_configuration.this.latest_revision
  }

  logs {
    general = true
  }

  # The administrator, with an initial password that the state contains: the provider has no write-only argument for it
  # (https://github.com/hashicorp/terraform-provider-aws/issues/48180). `scripts/broker-users` replaces it, and the state keeps the old one.
  user {
    username = "administrator"
    password = var.first_password
  }

  lifecycle {
    # Amazon MQ never changes the users of a RabbitMQ broker; some versions of the provider would create another broker.
    ignore_changes = [user]
  }
}

resource "aws_security_group" "broker" {
  name        = "${var.name}-broker"
  description = "RabbitMQ of ${var.name}"
  vpc_id      = var.vpc_id

  tags = { Name = "${var.name}-broker" }
}

resource "aws_vpc_security_group_ingress_rule" "client" {
  for_each = local.doors

  security_group_id            = aws_security_group.broker.id
  description                  = "Clients: ${each.key}"
  referenced_security_group_id = each.value.group
  cidr_ipv4                    = each.value.range
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
}

# The administrator's password. Terraform writes only the initial one, `scripts/broker-users` all later ones.
resource "aws_secretsmanager_secret" "administrator" {
  # checkov:skip=CKV2_AWS_57: scripts/broker-users rotates it: no AWS function can reach the management API.
  name                    = "${var.name}-broker-administrator"
  description             = "User and password of the administrator of ${var.name}'s broker"
  kms_key_id              = var.kms_key_arn
  recovery_window_in_days = 7
}

resource "aws_secretsmanager_secret_version" "administrator" {
  secret_id                = aws_secretsmanager_secret.administrator.id
  secret_string_wo         = jsonencode({ username = "administrator", password = var.first_password })
  secret_string_wo_version = 1
}

# Address, user and password of each role. Terraform creates the secrets, `scripts/broker-users` their values.
resource "aws_secretsmanager_secret" "role" {
  # checkov:skip=CKV2_AWS_57: scripts/broker-users rotates it: no AWS function can reach the management API.
  for_each = local.roles

  name                    = "${var.name}-broker-${each.key}"
  description             = "Address of ${var.name}'s queues for the role ${each.key}"
  kms_key_id              = var.kms_key_arn
  recovery_window_in_days = 7
}
