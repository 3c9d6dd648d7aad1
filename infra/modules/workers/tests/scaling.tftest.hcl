# Run by `terraform test`, without AWS: how many workers there are, and what is refused.

mock_provider "aws" {
  mock_data "aws_iam_policy_document" {
    defaults = { json = "{}" }
  }

  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
}

variables {
  name               = "team-worker"
  cluster            = { arn = "arn:aws:ecs:eu-central-1:123456789012:cluster/team", name = "team" }
  capacity           = [{ provider = "FARGATE", base = 0, weight = 1 }]
  image              = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/team/gristmill-worker:1"
  queue              = "sqs://team"
  store              = "s3://team-store/team"
  policy_arn         = "arn:aws:iam::123456789012:policy/team-worker"
  log_group          = "/gristmill/team"
  subnet_ids         = ["subnet-0123456789abcdef0"]
  security_group_ids = ["sg-0123456789abcdef0"]
  backlog_metrics    = [{ namespace = "AWS/SQS", name = "ApproximateNumberOfMessagesVisible", statistic = "Maximum", dimensions = { QueueName = "team-tasks" } }]
}

run "follows_the_backlog" {
  command = plan

  variables {
    workers_max        = 3
    backlog_per_worker = 10
  }

  assert {
    condition = jsonencode(output.steps) == jsonencode([
      { workers = 1, from = 0, to = 11 },
      { workers = 2, from = 11, to = 21 },
      { workers = 3, from = 21, to = null },
    ])
    error_message = "Each ten mini-batches are worth a worker."
  }

  assert {
    condition     = aws_appautoscaling_target.workers.min_capacity == 0
    error_message = "Without work there is no worker."
  }
}

run "refuses_fewer_at_most_than_at_least" {
  command = plan

  variables {
    workers_min = 5
    workers_max = 4
  }

  expect_failures = [var.workers_max]
}

run "refuses_a_stop_that_ecs_does_not_wait_for" {
  command = plan

  variables {
    stop_seconds = 600
  }

  expect_failures = [var.stop_seconds]
}
