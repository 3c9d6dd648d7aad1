# The rights of a person or pipeline that runs `terraform apply` or scripts/deploy for platforms, targets and arrays of workers on
# AWS Batch. An administrator of the account applies infra/examples/deployer once, and attaches the policies to that person's role.
#
# `actions` says what the AWS provider requests for each type of resource, in the mapping of https://github.com/JamesWoolfenden/pike
# and, where that lacks a request, as the provider's sources have it. `scopes` limits the actions of each service to resources with
# the given names, as far as the Service Authorization Reference knows such resources; `without_resource` are the actions for which it
# knows none. tests/deploy/test_deployer.py compares the types with those of the modules.

data "aws_partition" "current" {}

data "aws_caller_identity" "current" {}

locals {
  partition = data.aws_partition.current.partition
  account   = data.aws_caller_identity.current.account_id
  names     = var.deployer.names

  actions = {
    aws_appautoscaling_policy                          = ["application-autoscaling:DeleteScalingPolicy", "application-autoscaling:DescribeScalingPolicies", "application-autoscaling:PutScalingPolicy"]
    aws_appautoscaling_target                          = ["application-autoscaling:DeregisterScalableTarget", "application-autoscaling:DescribeScalableTargets", "application-autoscaling:ListTagsForResource", "application-autoscaling:RegisterScalableTarget", "application-autoscaling:TagResource", "application-autoscaling:UntagResource", "iam:CreateServiceLinkedRole"]
    aws_autoscaling_group                              = ["autoscaling:CreateAutoScalingGroup", "autoscaling:CreateOrUpdateTags", "autoscaling:DeleteAutoScalingGroup", "autoscaling:DeleteTags", "autoscaling:DescribeAutoScalingGroups", "autoscaling:DescribeScalingActivities", "autoscaling:DescribeWarmPool", "autoscaling:SetInstanceProtection", "autoscaling:UpdateAutoScalingGroup", "ec2:CreateTags", "ec2:RunInstances", "iam:CreateServiceLinkedRole", "iam:PassRole"]
    aws_batch_compute_environment                      = ["batch:CreateComputeEnvironment", "batch:DeleteComputeEnvironment", "batch:DescribeComputeEnvironments", "batch:ListTagsForResource", "batch:TagResource", "batch:UntagResource", "batch:UpdateComputeEnvironment", "iam:CreateServiceLinkedRole", "iam:PassRole"]
    aws_batch_job_definition                           = ["batch:DeregisterJobDefinition", "batch:DescribeJobDefinitions", "batch:ListTagsForResource", "batch:RegisterJobDefinition", "batch:TagResource", "batch:UntagResource", "iam:PassRole"]
    aws_batch_job_queue                                = ["batch:CreateJobQueue", "batch:DeleteJobQueue", "batch:DescribeJobQueues", "batch:ListTagsForResource", "batch:TagResource", "batch:UntagResource", "batch:UpdateJobQueue"]
    aws_cloudwatch_dashboard                           = ["cloudwatch:DeleteDashboards", "cloudwatch:GetDashboard", "cloudwatch:PutDashboard"]
    aws_cloudwatch_event_rule                          = ["events:DeleteRule", "events:DescribeRule", "events:ListTagsForResource", "events:PutRule", "events:TagResource", "events:UntagResource"]
    aws_cloudwatch_event_target                        = ["events:ListTargetsByRule", "events:PutTargets", "events:RemoveTargets"]
    aws_cloudwatch_log_group                           = ["logs:AssociateKmsKey", "logs:CreateLogGroup", "logs:DeleteLogGroup", "logs:DeleteRetentionPolicy", "logs:DescribeLogGroups", "logs:DisassociateKmsKey", "logs:ListTagsForResource", "logs:PutRetentionPolicy", "logs:TagResource", "logs:UntagResource"]
    aws_cloudwatch_log_metric_filter                   = ["logs:DeleteMetricFilter", "logs:DescribeMetricFilters", "logs:PutMetricFilter"]
    aws_cloudwatch_log_resource_policy                 = ["logs:DeleteResourcePolicy", "logs:DescribeResourcePolicies", "logs:PutResourcePolicy"]
    aws_cloudwatch_metric_alarm                        = ["cloudwatch:DeleteAlarms", "cloudwatch:DescribeAlarms", "cloudwatch:ListTagsForResource", "cloudwatch:PutMetricAlarm", "cloudwatch:TagResource", "cloudwatch:UntagResource"]
    aws_ecr_lifecycle_policy                           = ["ecr:DeleteLifecyclePolicy", "ecr:GetLifecyclePolicy", "ecr:PutLifecyclePolicy"]
    aws_ecr_repository                                 = ["ecr:CreateRepository", "ecr:DeleteRepository", "ecr:DescribeRepositories", "ecr:ListTagsForResource", "ecr:PutImageScanningConfiguration", "ecr:PutImageTagMutability", "ecr:TagResource", "ecr:UntagResource", "kms:CreateGrant", "kms:DescribeKey", "kms:RetireGrant"]
    aws_ecs_capacity_provider                          = ["autoscaling:CreateOrUpdateTags", "ecs:CreateCapacityProvider", "ecs:DeleteCapacityProvider", "ecs:DescribeCapacityProviders", "ecs:ListTagsForResource", "ecs:TagResource", "ecs:UntagResource", "ecs:UpdateCapacityProvider"]
    aws_ecs_cluster                                    = ["ecs:CreateCluster", "ecs:DeleteCluster", "ecs:DescribeClusters", "ecs:ListTagsForResource", "ecs:TagResource", "ecs:UntagResource", "ecs:UpdateCluster", "iam:CreateServiceLinkedRole"]
    aws_ecs_cluster_capacity_providers                 = ["ecs:DescribeClusters", "ecs:PutClusterCapacityProviders"]
    aws_ecs_service                                    = ["ecs:CreateService", "ecs:DeleteService", "ecs:DescribeServices", "ecs:ListTagsForResource", "ecs:TagResource", "ecs:UntagResource", "ecs:UpdateService"]
    aws_ecs_task_definition                            = ["ecs:DeregisterTaskDefinition", "ecs:DescribeTaskDefinition", "ecs:ListTagsForResource", "ecs:RegisterTaskDefinition", "ecs:TagResource", "ecs:UntagResource", "iam:PassRole"]
    aws_iam_instance_profile                           = ["iam:AddRoleToInstanceProfile", "iam:CreateInstanceProfile", "iam:DeleteInstanceProfile", "iam:GetInstanceProfile", "iam:PassRole", "iam:RemoveRoleFromInstanceProfile", "iam:TagInstanceProfile", "iam:UntagInstanceProfile"]
    aws_iam_policy                                     = ["iam:CreatePolicy", "iam:CreatePolicyVersion", "iam:DeletePolicy", "iam:DeletePolicyVersion", "iam:GetPolicy", "iam:GetPolicyVersion", "iam:ListPolicyVersions", "iam:TagPolicy", "iam:UntagPolicy"]
    aws_iam_role                                       = ["iam:CreateRole", "iam:DeleteRole", "iam:GetRole", "iam:ListAttachedRolePolicies", "iam:ListInstanceProfilesForRole", "iam:ListRolePolicies", "iam:PutRolePermissionsBoundary", "iam:TagRole", "iam:UntagRole", "iam:UpdateAssumeRolePolicy", "iam:UpdateRole", "iam:UpdateRoleDescription"]
    aws_iam_role_policy                                = ["iam:DeleteRolePolicy", "iam:GetRolePolicy", "iam:PutRolePolicy"]
    aws_iam_role_policy_attachment                     = ["iam:AttachRolePolicy", "iam:DetachRolePolicy", "iam:ListAttachedRolePolicies"]
    aws_kms_alias                                      = ["kms:CreateAlias", "kms:DeleteAlias", "kms:ListAliases", "kms:UpdateAlias"]
    aws_kms_key                                        = ["kms:CreateKey", "kms:DescribeKey", "kms:EnableKeyRotation", "kms:GetKeyPolicy", "kms:GetKeyRotationStatus", "kms:ListResourceTags", "kms:PutKeyPolicy", "kms:ScheduleKeyDeletion", "kms:TagResource", "kms:UntagResource", "kms:UpdateKeyDescription"]
    aws_launch_template                                = ["ec2:CreateLaunchTemplate", "ec2:CreateLaunchTemplateVersion", "ec2:CreateTags", "ec2:DeleteLaunchTemplate", "ec2:DeleteTags", "ec2:DescribeLaunchTemplateVersions", "ec2:DescribeLaunchTemplates", "ec2:ModifyLaunchTemplate"]
    aws_mq_broker                                      = ["ec2:CreateNetworkInterface", "ec2:CreateNetworkInterfacePermission", "ec2:DeleteNetworkInterface", "ec2:DeleteNetworkInterfacePermission", "ec2:DescribeAccountAttributes", "ec2:DescribeInternetGateways", "ec2:DescribeNetworkInterfacePermissions", "ec2:DescribeNetworkInterfaces", "ec2:DescribeSecurityGroups", "ec2:DescribeSubnets", "ec2:DescribeVpcs", "ec2:DetachNetworkInterface", "iam:CreateServiceLinkedRole", "kms:CreateGrant", "kms:DescribeKey", "mq:CreateBroker", "mq:CreateTags", "mq:DeleteBroker", "mq:DeleteTags", "mq:DescribeBroker", "mq:DescribeUser", "mq:RebootBroker", "mq:UpdateBroker"]
    aws_mq_configuration                               = ["mq:CreateConfiguration", "mq:CreateTags", "mq:DeleteConfiguration", "mq:DeleteTags", "mq:DescribeConfiguration", "mq:DescribeConfigurationRevision", "mq:ListTags", "mq:UpdateConfiguration"]
    aws_s3_bucket                                      = ["s3:CreateBucket", "s3:DeleteBucket", "s3:DeleteObject", "s3:DeleteObjectVersion", "s3:GetAccelerateConfiguration", "s3:GetBucketAcl", "s3:GetBucketCORS", "s3:GetBucketLogging", "s3:GetBucketObjectLockConfiguration", "s3:GetBucketPolicy", "s3:GetBucketRequestPayment", "s3:GetBucketTagging", "s3:GetBucketVersioning", "s3:GetBucketWebsite", "s3:GetEncryptionConfiguration", "s3:GetLifecycleConfiguration", "s3:GetReplicationConfiguration", "s3:ListBucket", "s3:ListBucketVersions", "s3:ListTagsForResource", "s3:PutBucketTagging", "s3:TagResource", "s3:UntagResource"]
    aws_s3_bucket_lifecycle_configuration              = ["s3:GetLifecycleConfiguration", "s3:PutLifecycleConfiguration"]
    aws_s3_bucket_ownership_controls                   = ["s3:GetBucketOwnershipControls", "s3:PutBucketOwnershipControls"]
    aws_s3_bucket_policy                               = ["s3:DeleteBucketPolicy", "s3:GetBucketPolicy", "s3:PutBucketPolicy"]
    aws_s3_bucket_public_access_block                  = ["s3:GetBucketPublicAccessBlock", "s3:PutBucketPublicAccessBlock"]
    aws_s3_bucket_replication_configuration            = ["iam:PassRole", "s3:GetReplicationConfiguration", "s3:PutReplicationConfiguration"]
    aws_s3_bucket_server_side_encryption_configuration = ["s3:GetEncryptionConfiguration", "s3:PutEncryptionConfiguration"]
    aws_s3_bucket_versioning                           = ["s3:GetBucketVersioning", "s3:PutBucketVersioning"]
    aws_secretsmanager_secret                          = ["kms:Decrypt", "kms:GenerateDataKey", "secretsmanager:CreateSecret", "secretsmanager:DeleteSecret", "secretsmanager:DescribeSecret", "secretsmanager:GetResourcePolicy", "secretsmanager:RestoreSecret", "secretsmanager:TagResource", "secretsmanager:UntagResource", "secretsmanager:UpdateSecret"]
    aws_secretsmanager_secret_version                  = ["secretsmanager:GetSecretValue", "secretsmanager:PutSecretValue", "secretsmanager:UpdateSecretVersionStage"]
    aws_security_group                                 = ["ec2:CreateSecurityGroup", "ec2:CreateTags", "ec2:DeleteSecurityGroup", "ec2:DeleteTags", "ec2:DescribeNetworkInterfaces", "ec2:DescribeSecurityGroups", "ec2:RevokeSecurityGroupEgress"]
    aws_sns_topic                                      = ["sns:CreateTopic", "sns:DeleteTopic", "sns:GetTopicAttributes", "sns:ListTagsForResource", "sns:SetTopicAttributes", "sns:TagResource", "sns:UntagResource"]
    aws_sns_topic_subscription                         = ["sns:GetSubscriptionAttributes", "sns:ListSubscriptionsByTopic", "sns:Subscribe", "sns:Unsubscribe"]
    aws_sqs_queue                                      = ["sqs:CreateQueue", "sqs:DeleteQueue", "sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:ListQueueTags", "sqs:SetQueueAttributes", "sqs:TagQueue", "sqs:UntagQueue"]
    aws_sqs_queue_policy                               = ["sqs:GetQueueAttributes", "sqs:SetQueueAttributes"]
    aws_ssm_parameter                                  = ["ssm:AddTagsToResource", "ssm:DeleteParameter", "ssm:DescribeParameters", "ssm:GetParameter", "ssm:GetParameters", "ssm:ListTagsForResource", "ssm:PutParameter", "ssm:RemoveTagsFromResource"]
    aws_vpc_endpoint                                   = ["ec2:CreateTags", "ec2:CreateVpcEndpoint", "ec2:DeleteTags", "ec2:DeleteVpcEndpoints", "ec2:DescribePrefixLists", "ec2:DescribeSecurityGroups", "ec2:DescribeSubnets", "ec2:DescribeVpcEndpoints", "ec2:ModifyVpcEndpoint"]
    aws_vpc_security_group_egress_rule                 = ["ec2:AuthorizeSecurityGroupEgress", "ec2:CreateTags", "ec2:DescribeSecurityGroupRules", "ec2:ModifySecurityGroupRules", "ec2:RevokeSecurityGroupEgress"]
    aws_vpc_security_group_ingress_rule                = ["ec2:AuthorizeSecurityGroupIngress", "ec2:CreateTags", "ec2:DescribeSecurityGroupRules", "ec2:ModifySecurityGroupRules", "ec2:RevokeSecurityGroupIngress"]

    "data.aws_ec2_instance_type" = ["ec2:DescribeInstanceTypes"]
    "data.aws_sqs_queues"        = ["sqs:ListQueues"]
    "data.aws_ssm_parameter"     = ["ssm:GetParameter"]
    "data.aws_subnets"           = ["ec2:DescribeSubnets"]
    "data.aws_vpc"               = ["ec2:DescribeRouteTables", "ec2:DescribeVpcAttribute", "ec2:DescribeVpcs"]

    # scripts/deploy pushes images.
    "scripts/deploy" = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:CompleteLayerUpload", "ecr:GetAuthorizationToken", "ecr:GetDownloadUrlForLayer", "ecr:InitiateLayerUpload", "ecr:PutImage", "ecr:UploadLayerPart"]
  }

  # Actions for which IAM knows no resource, and those on resources whose names AWS chooses: scaling of services, security groups,
  # endpoints, launch templates, subscriptions.
  without_resource = join("|", [
    "autoscaling:Describe.*", "application-autoscaling:.*", "batch:Describe.*", "ec2:.*",
    "ecr:GetAuthorizationToken", "ecs:(Deregister|Describe)TaskDefinition", "logs:DescribeLogGroups",
    "logs:.*ResourcePolic.*", "mq:Create(Broker|Configuration)", "sns:(GetSubscriptionAttributes|Unsubscribe)",
    "sqs:ListQueues", "ssm:DescribeParameters",
  ])
  arn = { for service in ["autoscaling", "batch", "cloudwatch", "ecr", "ecs", "events", "kms", "logs", "mq", "secretsmanager", "sns", "sqs", "ssm"] :
    service => "arn:${local.partition}:${service}:*:${local.account}"
  }
  bucket_arns = formatlist("arn:${local.partition}:s3:::%s", var.deployer.buckets)
  role_arns   = [for name in local.names : "arn:${local.partition}:iam::${local.account}:role/${name}-*"]
  # Those that create and change rights of roles, which a permissions boundary limits.
  grants = ["iam:AttachRolePolicy", "iam:CreateRole", "iam:PutRolePermissionsBoundary", "iam:PutRolePolicy"]

  scopes = {
    autoscaling    = [for name in local.names : "${local.arn.autoscaling}:autoScalingGroup:*:autoScalingGroupName/${name}-*"]
    batch          = concat(["${local.arn.batch}:compute-environment/*"], flatten([for name in local.names : ["${local.arn.batch}:job-queue/${name}", "${local.arn.batch}:job-definition/${name}-*"]]))
    cloudwatch     = flatten([for name in local.names : ["${local.arn.cloudwatch}:alarm:${name}-*", "arn:${local.partition}:cloudwatch::${local.account}:dashboard/${name}"]])
    ecr            = [for name in local.names : "${local.arn.ecr}:repository/${name}/*"]
    ecs            = flatten([for name in local.names : formatlist("${local.arn.ecs}:%s", ["cluster/${name}", "capacity-provider/${name}-*", "service/*/${name}-*", "task-definition/${name}-*"])])
    events         = [for name in local.names : "${local.arn.events}:rule/${name}-*"]
    iam            = concat(local.role_arns, flatten([for name in local.names : formatlist("arn:${local.partition}:iam::${local.account}:%s/${name}-*", ["policy", "instance-profile"])]))
    logs           = flatten([for name in local.names : formatlist("${local.arn.logs}:log-group:%s/${name}*", ["/gristmill", "/aws/events/gristmill"])])
    mq             = concat(["${local.arn.mq}:configuration:*"], [for name in local.names : "${local.arn.mq}:broker:${name}:*"])
    s3             = concat(local.bucket_arns, formatlist("%s/*", local.bucket_arns))
    secretsmanager = [for name in local.names : "${local.arn.secretsmanager}:secret:${name}-broker-*"]
    sns            = [for name in local.names : "${local.arn.sns}:${name}-alarms*"]
    sqs            = [for name in local.names : "${local.arn.sqs}:${name}-*"]
    ssm            = [for name in local.names : "${local.arn.ssm}:parameter/gristmill/platforms/${name}"]
  }

  # IAM and KMS have statements of their own.
  requested  = distinct(flatten(values(local.actions)))
  by_service = { for action in local.requested : split(":", action)[0] => action... }
  special    = concat(local.grants, ["iam:PassRole", "iam:CreateServiceLinkedRole", "ssm:GetParameter"])
  statements = merge(
    { for service, actions in local.by_service : service => [
      for statement in [
        { resources = try(local.scopes[service], []), actions = [for action in actions : action if !can(regex("^(${local.without_resource})$", action)) && !contains(local.special, action)] },
        { resources = ["*"], actions = [for action in actions : action if can(regex("^(${local.without_resource})$", action))] },
      ] : merge({ conditions = [] }, statement) if length(statement.actions) > 0
    ] if service != "kms" },
    {
      grants = [
        { actions = local.grants, resources = local.role_arns, conditions = [for arn in var.deployer.permissions_boundary_arn[*] : { test = "StringEquals", variable = "iam:PermissionsBoundary", values = [arn] }] },
        # To tasks, machines, and S3, which copies outputs.
        { actions = ["iam:PassRole"], resources = local.role_arns, conditions = [{ test = "StringEquals", variable = "iam:PassedToService", values = ["ec2.amazonaws.com", "ecs-tasks.amazonaws.com", "s3.amazonaws.com"] }] },
        # The first use of a service in an account.
        { actions = ["iam:CreateServiceLinkedRole"], resources = ["arn:${local.partition}:iam::${local.account}:role/aws-service-role/*"], conditions = [{ test = "StringEquals", variable = "iam:AWSServiceName", values = formatlist("%s.amazonaws.com", ["autoscaling", "batch", "ecs", "ecs.application-autoscaling", "mq", "spot"]) }] },
      ]
      parameters = [{ actions = ["ssm:GetParameter"], resources = ["${local.arn.ssm}:parameter/gristmill/platforms/*", "arn:${local.partition}:ssm:*::parameter/aws/service/ecs/*"], conditions = [] }]
      # Keys have no names, so those that Terraform creates are known by a tag; aliases have none.
      kms = concat(
        [
          { actions = ["kms:CreateKey", "kms:TagResource"], resources = ["*"], conditions = [{ test = "StringEquals", variable = "aws:RequestTag/Application", values = ["gristmill"] }] },
          { actions = ["kms:CreateAlias", "kms:DeleteAlias", "kms:UpdateAlias"], resources = [for name in local.names : "${local.arn.kms}:alias/${name}"], conditions = [] },
          { actions = ["kms:ListAliases"], resources = ["*"], conditions = [] },
          { actions = [for action in local.by_service.kms : action if !contains(["kms:CreateKey", "kms:ListAliases"], action)], resources = ["${local.arn.kms}:key/*"], conditions = [{ test = "StringEquals", variable = "aws:ResourceTag/Application", values = ["gristmill"] }] },
        ],
        [for arns in [var.deployer.kms_key_arns] : { actions = ["kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKey", "kms:RetireGrant"], resources = arns, conditions = [] } if length(arns) > 0],
      )
      state  = [for place in var.deployer.state[*] : { actions = ["s3:DeleteObject", "s3:GetObject", "s3:PutObject"], resources = ["arn:${local.partition}:s3:::${place}"], conditions = [] }]
      states = [for place in var.deployer.state[*] : { actions = ["s3:ListBucket"], resources = ["arn:${local.partition}:s3:::${split("/", place)[0]}"], conditions = [] }]
    },
  )

  # A managed policy has 6144 characters.
  parts = {
    network = ["ec2"]
    compute = ["application-autoscaling", "autoscaling", "batch", "ecr", "ecs"]
    data    = ["kms", "mq", "parameters", "s3", "secretsmanager", "sqs", "ssm", "state", "states"]
    rights  = ["cloudwatch", "events", "grants", "iam", "logs", "sns"]
  }
}

data "aws_iam_policy_document" "part" {
  # checkov:skip=CKV_AWS_109: those who create roles and key policies manage permissions; a boundary limits them.
  # checkov:skip=CKV_AWS_111: actions for which IAM knows no resource, or no name of it.
  # checkov:skip=CKV_AWS_356: actions for which IAM knows no resource, or no name of it.
  for_each = local.parts

  dynamic "statement" {
    for_each = flatten([for service in each.value : local.statements[service]])

    content {
      actions   = statement.value.actions
      resources = statement.value.resources

      dynamic "condition" {
        for_each = statement.value.conditions

        content {
          test     = condition.value.test
          variable = condition.value.variable
          values   = condition.value.values
        }
      }
    }
  }
}

resource "aws_iam_policy" "part" {
  for_each = local.parts

  name        = "${var.deployer.policy_prefix}-${each.key}"
  description = "Gristmill: terraform apply for ${join(", ", local.names)}: ${each.key}"
  policy      = data.aws_iam_policy_document.part[each.key].json

  lifecycle {
    precondition {
      condition     = length(replace(data.aws_iam_policy_document.part[each.key].json, "/\\s/", "")) <= 6144
      error_message = "The policy ${var.deployer.policy_prefix}-${each.key} has more than the 6144 characters that IAM allows: give each person or pipeline fewer `names`."
    }
  }
}
