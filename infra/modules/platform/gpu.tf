# Groups of EC2 instances with GPUs, for tasks that require one. ECS starts as many of a group as waiting tasks need, and none without
# tasks. Scaling never removes an instance with a task, and drains an instance before it stops it.

locals {
  has_gpus = length(var.platform.gpu_groups) > 0
  # GPUs of each type, and the share of each GPU in the memory and processors of its instance. ECS registers less memory
  # than EC2 advertises, and its agent and the driver need some too, so a tenth stays with the instance.
  gpus_of = { for type, found in data.aws_ec2_instance_type.gpu : type => sum(concat([0], [for gpu in found.gpus : gpu.count])) }
  gpu_shares = { for name, group in var.platform.gpu_groups : name => {
    memory_mib = min([for type in group.instance_types : floor(data.aws_ec2_instance_type.gpu[type].memory_size * 0.9 / max(1, local.gpus_of[type]))]...)
    cpu_units  = min([for type in group.instance_types : floor(data.aws_ec2_instance_type.gpu[type].default_vcpus * 1024 / max(1, local.gpus_of[type]))]...)
  } }
}

data "aws_ec2_instance_type" "gpu" {
  for_each = toset(flatten(values(var.platform.gpu_groups)[*].instance_types))

  instance_type = each.key

  lifecycle {
    postcondition {
      condition     = length(self.gpus) > 0
      error_message = "${each.key} has no GPU: name other `instance_types`."
    }
  }
}

data "aws_ssm_parameter" "gpu_image" {
  count = local.has_gpus ? 1 : 0

  name = "/aws/service/ecs/optimized-ami/amazon-linux-2023/gpu/recommended/image_id"
}

data "aws_iam_policy_document" "assumed_by_ec2" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "instance" {
  count = local.has_gpus ? 1 : 0

  name                 = "${var.platform.name}-instance"
  description          = "Instances of the cluster ${var.platform.name}: permissions of their ECS agent"
  assume_role_policy   = data.aws_iam_policy_document.assumed_by_ec2.json
  permissions_boundary = var.platform.permissions_boundary_arn
}

resource "aws_iam_role_policy_attachment" "instance" {
  count = local.has_gpus ? 1 : 0

  role       = aws_iam_role.instance[0].name
  policy_arn = "arn:${data.aws_partition.current.partition}:iam::aws:policy/service-role/AmazonEC2ContainerServiceforEC2Role"
}

resource "aws_iam_instance_profile" "instance" {
  count = local.has_gpus ? 1 : 0

  name = "${var.platform.name}-instance"
  role = aws_iam_role.instance[0].name
}

# The instances themselves; tasks have their own network interfaces and security groups.
resource "aws_security_group" "instances" {
  count = local.has_gpus ? 1 : 0

  name        = "${var.platform.name}-instances"
  description = "Instances of ${var.platform.name}"
  vpc_id      = var.platform.vpc_id

  tags = { Name = "${var.platform.name}-instances" }
}

resource "aws_vpc_security_group_egress_rule" "instances" {
  for_each = !local.has_gpus ? {} : var.platform.public_egress ? { AWS = { range = "0.0.0.0/0", group = null, list = null } } : {
    endpoints = { range = null, group = one(aws_security_group.endpoints[*].id), list = null }
    S3        = { range = null, group = null, list = one(aws_vpc_endpoint.s3[*].prefix_list_id) }
  }

  security_group_id            = aws_security_group.instances[0].id
  description                  = each.key
  cidr_ipv4                    = each.value.range
  referenced_security_group_id = each.value.group
  prefix_list_id               = each.value.list
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
}

data "aws_default_tags" "current" {}

resource "aws_launch_template" "gpu" {
  for_each = var.platform.gpu_groups

  name_prefix            = "${var.platform.name}-gpu-${each.key}-"
  image_id               = data.aws_ssm_parameter.gpu_image[0].value
  update_default_version = true

  # The agent drains the instance on a spot notice, gives containers the stop timeout of their task, and blocks access from
  # tasks to the role of the instance.
  user_data = base64encode(<<-USER_DATA
    #!/bin/sh
    cat >>/etc/ecs/ecs.config <<'SETTINGS'
    ECS_CLUSTER=${aws_ecs_cluster.this.name}
    ECS_ENABLE_GPU_SUPPORT=true
    ECS_ENABLE_SPOT_INSTANCE_DRAINING=true
    ECS_CONTAINER_STOP_TIMEOUT=120s
    ECS_AWSVPC_BLOCK_IMDS=true
    SETTINGS
  USER_DATA
  )

  iam_instance_profile {
    arn = aws_iam_instance_profile.instance[0].arn
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_size           = each.value.disk_gib
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }

  network_interfaces {
    associate_public_ip_address = false
    security_groups             = [aws_security_group.instances[0].id]
  }

  monitoring {
    enabled = true
  }

  # The provider's tags apply to the template, but not to the instances that an auto scaling group starts from it.
  dynamic "tag_specifications" {
    for_each = toset(["instance", "volume", "network-interface"])

    content {
      resource_type = tag_specifications.value
      tags          = merge(data.aws_default_tags.current.tags, { Name = "${var.platform.name}-gpu-${each.key}" })
    }
  }
}

resource "aws_autoscaling_group" "gpu" {
  for_each = var.platform.gpu_groups

  name                  = "${var.platform.name}-gpu-${each.key}"
  min_size              = 0
  max_size              = each.value.instances_max
  vpc_zone_identifier   = var.platform.subnet_ids
  protect_from_scale_in = true
  capacity_rebalance    = true

  mixed_instances_policy {
    instances_distribution {
      on_demand_base_capacity                  = each.value.on_demand_floor
      on_demand_percentage_above_base_capacity = each.value.on_demand_percent
      spot_allocation_strategy                 = "price-capacity-optimized"
    }

    launch_template {
      launch_template_specification {
        launch_template_id = aws_launch_template.gpu[each.key].id
        version            = aws_launch_template.gpu[each.key].latest_version
      }

      dynamic "override" {
        for_each = each.value.instance_types

        content {
          instance_type = override.value
        }
      }
    }
  }

  # ECS identifies its instances by this tag.
  tag {
    key                 = "AmazonECSManaged"
    value               = "true"
    propagate_at_launch = true
  }

  lifecycle {
    ignore_changes = [desired_capacity]
  }
}

resource "aws_ecs_capacity_provider" "gpu" {
  for_each = var.platform.gpu_groups

  name = "${var.platform.name}-gpu-${each.key}"

  auto_scaling_group_provider {
    auto_scaling_group_arn         = aws_autoscaling_group.gpu[each.key].arn
    managed_draining               = "ENABLED"
    managed_termination_protection = "ENABLED"

    managed_scaling {
      status          = "ENABLED"
      target_capacity = 100
    }
  }
}
