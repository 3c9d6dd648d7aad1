# Workers on AWS Batch, on spot machines: an array job that starts when a user submits it, and ends when there is no work
# left. Queues, store and policies are those of a target; infra/batch/README.md describes its use.

data "aws_partition" "current" {}

data "aws_region" "current" {}

data "aws_default_tags" "current" {}

locals {
  # Batch gives a container shares of a machine instead of a countable number of processors, so the worker needs a number.
  roles = {
    worker = merge(var.batch.worker, {
      tmp = 1024
      command = [
        "worker", "--idle-exit", "300", "--grace", "100", "--process-count", tostring(var.batch.worker.vcpus),
        "--spot-notice", "--spot-exit-status", "75",
      ]
      # 75: its machine was reclaimed. `Host EC2*`: Batch's reason if the machine disappeared before the container ended.
      retries = [{ on_exit_code = "75" }, { on_status_reason = "Host EC2*" }]
    })
    reducer = {
      vcpus   = 1
      memory  = 1920
      gpus    = 0
      tmp     = 512
      command = ["reducer", "--idle-exit", "600"]
      retries = [{ on_status_reason = "Host EC2*" }]
    }
  }
}

resource "aws_launch_template" "machines" {
  name_prefix = "${var.batch.name}-batch-"
  user_data   = filebase64("${path.module}/user-data.txt")

  metadata_options {
    http_endpoint = "enabled"
    http_tokens   = "required"
    # Jobs use the network of their machine, so the spot notice is one hop away.
    http_put_response_hop_limit = 1
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_size           = var.batch.disk_gib
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }

  dynamic "tag_specifications" {
    for_each = toset(["instance", "volume", "network-interface"])

    content {
      resource_type = tag_specifications.value
      tags          = merge(data.aws_default_tags.current.tags, { Name = "${var.batch.name}-batch" })
    }
  }
}

resource "aws_batch_compute_environment" "spot" {
  # It has no name, whose argument differs between versions 5 and 6 of the provider: Terraform creates a new one before it
  # removes the old one.
  type  = "MANAGED"
  state = "ENABLED"

  compute_resources {
    type                = "SPOT"
    allocation_strategy = "SPOT_PRICE_CAPACITY_OPTIMIZED"
    min_vcpus           = 0
    max_vcpus           = var.batch.vcpus_max
    instance_type       = var.batch.instance_types
    subnets             = var.batch.subnet_ids
    security_group_ids  = var.batch.security_group_ids
    instance_role       = aws_iam_instance_profile.machines.arn

    launch_template {
      launch_template_id = aws_launch_template.machines.id
      version            = aws_launch_template.machines.latest_version
    }
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_batch_job_queue" "this" {
  name     = var.batch.name
  state    = "ENABLED"
  priority = 1

  compute_environment_order {
    order               = 1
    compute_environment = aws_batch_compute_environment.spot.arn
  }
}

resource "aws_batch_job_definition" "role" {
  for_each = local.roles

  name                  = "${var.batch.name}-${each.key}"
  type                  = "container"
  platform_capabilities = ["EC2"]
  propagate_tags        = true

  container_properties = jsonencode({
    image                  = var.batch.images[each.key]
    command                = each.value.command
    jobRoleArn             = aws_iam_role.batch[each.key].arn
    executionRoleArn       = aws_iam_role.batch["execution"].arn
    user                   = "10001"
    privileged             = false
    readonlyRootFilesystem = true
    environment = [for name, value in {
      AWS_REGION           = data.aws_region.current.id
      GRISTMILL_LISTEN     = "127.0.0.1:0" # Several containers share the network of a machine.
      GRISTMILL_LOG_FORMAT = "json"
      GRISTMILL_QUEUE      = var.batch.queue
      GRISTMILL_STORE      = var.batch.store
    } : { name = name, value = value }]

    resourceRequirements = concat(
      [{ type = "VCPU", value = tostring(each.value.vcpus) }, { type = "MEMORY", value = tostring(each.value.memory) }],
      each.value.gpus == 0 ? [] : [{ type = "GPU", value = tostring(each.value.gpus) }],
    )
    linuxParameters = {
      sharedMemorySize = floor(each.value.memory / 2)
      tmpfs            = [{ containerPath = "/tmp", size = each.value.tmp, mountOptions = ["exec", "nosuid", "nodev"] }]
    }
    # All containers of a machine share this cache of environments, snapshots and side inputs.
    volumes     = [{ name = "cache", host = { sourcePath = "/var/cache/gristmill" } }]
    mountPoints = [{ sourceVolume = "cache", containerPath = "/var/cache/gristmill", readOnly = false }]
    logConfiguration = {
      logDriver = "awslogs"
      options   = { awslogs-stream-prefix = each.key }
    }
  })

  retry_strategy {
    attempts = 10

    dynamic "evaluate_on_exit" {
      for_each = each.value.retries

      content {
        action           = "RETRY"
        on_exit_code     = lookup(evaluate_on_exit.value, "on_exit_code", null)
        on_status_reason = lookup(evaluate_on_exit.value, "on_status_reason", null)
      }
    }

    # The first matching rule applies: Batch does not repeat a job that fails for another reason.
    evaluate_on_exit {
      action    = "EXIT"
      on_reason = "*"
    }
  }
}
