# Run by `terraform test`, without AWS: each broker, GPUs, and what is refused.

mock_provider "aws" {
  mock_data "aws_iam_policy_document" {
    defaults = { json = "{}" }
  }

  mock_resource "aws_mq_broker" {
    defaults = { instances = [{ endpoints = ["amqps://b-1.mq.eu-central-1.amazonaws.com:5671"] }] }
  }

  mock_resource "aws_kms_key" {
    defaults = { arn = "arn:aws:kms:eu-central-1:123456789012:key/one" }
  }

  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/one" }
  }

  mock_resource "aws_iam_policy" {
    defaults = { arn = "arn:aws:iam::123456789012:policy/one" }
  }

  mock_resource "aws_iam_instance_profile" {
    defaults = { arn = "arn:aws:iam::123456789012:instance-profile/one" }
  }

  mock_resource "aws_sns_topic" {
    defaults = { arn = "arn:aws:sns:eu-central-1:123456789012:one" }
  }

  mock_resource "aws_sqs_queue" {
    defaults = { arn = "arn:aws:sqs:eu-central-1:123456789012:one" }
  }

  mock_resource "aws_secretsmanager_secret" {
    defaults = { arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:one" }
  }

  mock_resource "aws_autoscaling_group" {
    defaults = { arn = "arn:aws:autoscaling:eu-central-1:123456789012:autoScalingGroup:one:autoScalingGroupName/one" }
  }

  mock_resource "aws_appautoscaling_policy" {
    defaults = { arn = "arn:aws:autoscaling:eu-central-1:123456789012:scalingPolicy:one" }
  }

  mock_resource "aws_ecs_cluster" {
    defaults = { arn = "arn:aws:ecs:eu-central-1:123456789012:cluster/one" }
  }

  mock_resource "aws_ecs_task_definition" {
    defaults = { arn = "arn:aws:ecs:eu-central-1:123456789012:task-definition/one:1" }
  }

  mock_resource "aws_cloudwatch_log_group" {
    defaults = { arn = "arn:aws:logs:eu-central-1:123456789012:log-group:one" }
  }

  mock_resource "aws_launch_template" {
    defaults = { id = "lt-0123456789abcdef0", latest_version = 1 }
  }

  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }

  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }

  mock_data "aws_region" {
    defaults = { name = "eu-central-1" }
  }
}

variables {
  name       = "team"
  image_tag  = "1"
  bucket     = "team-store"
  vpc_id     = "vpc-0123456789abcdef0"
  subnet_ids = ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"]
}

run "sqs" {
  assert {
    condition = output.target == {
      name     = "team"
      queue    = "sqs://team"
      store    = "s3://team-store/team"
      region   = "eu-central-1"
      endpoint = null
    }
    error_message = "The target is what `gristmill target import` reads."
  }
}

run "rabbitmq" {
  variables {
    broker          = "rabbitmq"
    broker_password = "a-long-p@ssword"
  }

  assert {
    condition     = output.target.queue == "amqps://gristmill:$${BROKER_PASSWORD}@b-1.mq.eu-central-1.amazonaws.com:5671/%2f?prefix=team"
    error_message = "The address names a variable in the place of the password."
  }

  assert {
    condition     = length(module.queue) == 0
    error_message = "There are no queues at SQS beside RabbitMQ."
  }
}

run "gpu" {
  variables {
    gpu = { instance_types = ["g5.xlarge"] }
  }

  assert {
    condition     = length(module.cluster.gpu_capacity) == 1
    error_message = "Workers run on instances with GPUs."
  }
}

run "refuses_rabbitmq_without_a_password" {
  command = plan

  variables {
    broker = "rabbitmq"
  }

  expect_failures = [var.broker_password]
}

run "refuses_a_tag_that_moves" {
  command = plan

  variables {
    image_tag = "latest"
  }

  expect_failures = [var.image_tag]
}

run "refuses_one_subnet" {
  command = plan

  variables {
    subnet_ids = ["subnet-0123456789abcdef0"]
  }

  expect_failures = [var.subnet_ids]
}
