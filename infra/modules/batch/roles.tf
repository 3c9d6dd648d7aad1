# IAM roles of the machines, of ECS when it starts a container, and of the containers. A job can get the credentials of its
# machine from the metadata address, so the machine's role has only the permissions of its agent.

locals {
  managed_policies = "arn:${data.aws_partition.current.partition}:iam::aws:policy/service-role"

  iam_roles = merge(
    {
      machines  = { service = "ec2", policy = "${local.managed_policies}/AmazonEC2ContainerServiceforEC2Role", does = "Machines" }
      execution = { service = "ecs-tasks", policy = "${local.managed_policies}/AmazonECSTaskExecutionRolePolicy", does = "Starts containers" }
    },
    { for name, arn in var.batch.policy_arns : name => { service = "ecs-tasks", policy = arn, does = "The role ${name}" } },
  )
}

data "aws_iam_policy_document" "assumed" {
  for_each = toset(["ec2", "ecs-tasks"])

  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["${each.key}.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "batch" {
  for_each = local.iam_roles

  name                 = "${var.batch.name}-batch-${each.key}"
  description          = "AWS Batch for ${var.batch.name}: ${each.value.does}"
  assume_role_policy   = data.aws_iam_policy_document.assumed[each.value.service].json
  permissions_boundary = var.batch.permissions_boundary_arn
}

resource "aws_iam_role_policy_attachment" "batch" {
  for_each = local.iam_roles

  role       = aws_iam_role.batch[each.key].name
  policy_arn = each.value.policy
}

resource "aws_iam_instance_profile" "machines" {
  name = "${var.batch.name}-batch-machines"
  role = aws_iam_role.batch["machines"].name
}
