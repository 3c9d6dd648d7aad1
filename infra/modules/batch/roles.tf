# IAM roles of the machines, of ECS when it starts a container, and of the containers. A job can get the credentials of its
# machine from the metadata address, so the machine's role has only the permissions of its agent.

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

resource "aws_iam_role" "machines" {
  name                 = "${var.name}-batch-machines"
  description          = "Machines of AWS Batch for ${var.name}"
  assume_role_policy   = data.aws_iam_policy_document.assumed["ec2"].json
  permissions_boundary = var.permissions_boundary_arn
}

resource "aws_iam_role_policy_attachment" "machines" {
  role       = aws_iam_role.machines.name
  policy_arn = "arn:${data.aws_partition.current.partition}:iam::aws:policy/service-role/AmazonEC2ContainerServiceforEC2Role"
}

resource "aws_iam_instance_profile" "machines" {
  name = "${var.name}-batch-machines"
  role = aws_iam_role.machines.name
}

resource "aws_iam_role" "execution" {
  name                 = "${var.name}-batch-execution"
  description          = "Starts containers of AWS Batch for ${var.name}"
  assume_role_policy   = data.aws_iam_policy_document.assumed["ecs-tasks"].json
  permissions_boundary = var.permissions_boundary_arn
}

resource "aws_iam_role_policy_attachment" "execution" {
  role       = aws_iam_role.execution.name
  policy_arn = "arn:${data.aws_partition.current.partition}:iam::aws:policy/service-role/AmazonECSTaskExecutionRolePolicy"
}

resource "aws_iam_role" "job" {
  for_each = local.roles

  name                 = "${var.name}-batch-${each.key}"
  description          = "The role ${each.key} of ${var.name} on AWS Batch"
  assume_role_policy   = data.aws_iam_policy_document.assumed["ecs-tasks"].json
  permissions_boundary = var.permissions_boundary_arn
}

resource "aws_iam_role_policy_attachment" "job" {
  for_each = local.roles

  role       = aws_iam_role.job[each.key].name
  policy_arn = each.value.policy
}
