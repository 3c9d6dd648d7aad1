# EC2 instances with GPUs, for tasks that ask for one. ECS starts as many as the waiting tasks need, and none without
# tasks. An instance with a task on it is never taken away by scaling, and is drained before it is stopped.

locals {
  has_gpus = var.gpu != null
}

data "aws_partition" "current" {}

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

  name               = "${var.name}-instance"
  description        = "Instances of the cluster ${var.name}: what their ECS agent may do"
  assume_role_policy = data.aws_iam_policy_document.assumed_by_ec2.json
}

resource "aws_iam_role_policy_attachment" "instance" {
  count = local.has_gpus ? 1 : 0

  role       = aws_iam_role.instance[0].name
  policy_arn = "arn:${data.aws_partition.current.partition}:iam::aws:policy/service-role/AmazonEC2ContainerServiceforEC2Role"
}

resource "aws_iam_instance_profile" "instance" {
  count = local.has_gpus ? 1 : 0

  name = "${var.name}-instance"
  role = aws_iam_role.instance[0].name
}

resource "aws_launch_template" "gpu" {
  count = local.has_gpus ? 1 : 0

  name_prefix            = "${var.name}-gpu-"
  image_id               = data.aws_ssm_parameter.gpu_image[0].value
  update_default_version = true

  # Drained on a spot notice; containers get as long to stop as the task says; tasks have roles of their own and no way
  # to that of the instance.
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
      volume_size           = var.gpu.disk_gib
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }

  network_interfaces {
    associate_public_ip_address = false
    security_groups             = [aws_security_group.tasks.id]
  }

  monitoring {
    enabled = true
  }

  tag_specifications {
    resource_type = "instance"
    tags          = { Name = "${var.name}-gpu" }
  }
}

resource "aws_autoscaling_group" "gpu" {
  count = local.has_gpus ? 1 : 0

  name                  = "${var.name}-gpu"
  min_size              = 0
  max_size              = var.gpu.instances_max
  vpc_zone_identifier   = var.gpu_subnet_ids
  protect_from_scale_in = true
  capacity_rebalance    = true

  mixed_instances_policy {
    instances_distribution {
      on_demand_base_capacity                  = var.on_demand_floor
      on_demand_percentage_above_base_capacity = var.on_demand_percent
      spot_allocation_strategy                 = "price-capacity-optimized"
    }

    launch_template {
      launch_template_specification {
        launch_template_id = aws_launch_template.gpu[0].id
        version            = aws_launch_template.gpu[0].latest_version
      }

      dynamic "override" {
        for_each = var.gpu.instance_types

        content {
          instance_type = override.value
        }
      }
    }
  }

  # ECS finds its instances by it.
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
  count = local.has_gpus ? 1 : 0

  name = "${var.name}-gpu"

  auto_scaling_group_provider {
    auto_scaling_group_arn         = aws_autoscaling_group.gpu[0].arn
    managed_draining               = "ENABLED"
    managed_termination_protection = "ENABLED"

    managed_scaling {
      status          = "ENABLED"
      target_capacity = 100
    }
  }
}
