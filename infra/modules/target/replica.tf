# Copies of outputs in another bucket, of any account and Region (`retention.replica`). S3 copies each object after it was written, and
# copies neither deletions nor older outputs. Its role can only add to the other bucket, whose owner allows it by a bucket policy if that
# is another account.

locals {
  replicas = { for name, replica in { outputs = var.target.retention.replica } : name => replica if replica != null }
}

data "aws_iam_policy_document" "assumed_by_s3" {
  for_each = local.replicas

  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["s3.amazonaws.com"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.current.account_id]
    }
  }
}

resource "aws_iam_role" "replica" {
  for_each = local.replicas

  name                 = "${var.target.name}-replica"
  description          = "Gristmill: S3 copies outputs of ${var.target.name}"
  assume_role_policy   = data.aws_iam_policy_document.assumed_by_s3[each.key].json
  permissions_boundary = var.target.permissions_boundary_arn
}

# https://docs.aws.amazon.com/AmazonS3/latest/userguide/setting-repl-config-perm-overview.html
data "aws_iam_policy_document" "replica" {
  for_each = local.replicas

  statement {
    sid       = "ReadConfiguration"
    actions   = ["s3:GetReplicationConfiguration", "s3:ListBucket"]
    resources = ["arn:${data.aws_partition.current.partition}:s3:::${module.store.bucket}"]
  }

  statement {
    sid       = "ReadOutputs"
    actions   = ["s3:GetObjectVersionAcl", "s3:GetObjectVersionForReplication", "s3:GetObjectVersionTagging"]
    resources = ["arn:${data.aws_partition.current.partition}:s3:::${module.store.bucket}/outputs/*"]
  }

  statement {
    sid       = "WriteCopies"
    actions   = concat(["s3:ReplicateObject", "s3:ReplicateTags"], each.value.account_id == null ? [] : ["s3:ObjectOwnerOverrideToBucketOwner"])
    resources = ["${each.value.bucket_arn}/outputs/*"]
  }

  dynamic "statement" {
    for_each = { for sid, part in {
      DecryptOutputs = { action = "kms:Decrypt", key = local.kms_key_arn }
      EncryptCopies  = { action = "kms:Encrypt", key = each.value.kms_key_arn }
    } : sid => part if each.value.kms_key_arn != null }

    content {
      sid       = statement.key
      actions   = [statement.value.action]
      resources = [statement.value.key]

      condition {
        test     = "StringLike"
        variable = "kms:ViaService"
        values   = ["s3.*.amazonaws.com"]
      }
    }
  }
}

resource "aws_iam_role_policy" "replica" {
  for_each = local.replicas

  name   = "replicate"
  role   = aws_iam_role.replica[each.key].name
  policy = data.aws_iam_policy_document.replica[each.key].json
}

resource "aws_s3_bucket_replication_configuration" "outputs" {
  for_each = local.replicas

  bucket = module.store.bucket
  role   = aws_iam_role.replica[each.key].arn

  rule {
    id     = "outputs"
    status = "Enabled"

    filter {
      prefix = "outputs/"
    }

    delete_marker_replication {
      status = "Disabled"
    }

    dynamic "source_selection_criteria" {
      for_each = each.value.kms_key_arn[*]

      content {
        sse_kms_encrypted_objects {
          status = "Enabled"
        }
      }
    }

    destination {
      bucket  = each.value.bucket_arn
      account = each.value.account_id

      dynamic "access_control_translation" {
        for_each = each.value.account_id[*]

        content {
          owner = "Destination"
        }
      }

      dynamic "encryption_configuration" {
        for_each = each.value.kms_key_arn[*]

        content {
          replica_kms_key_id = encryption_configuration.value
        }
      }
    }
  }

  # The bucket has versions by then.
  depends_on = [module.store]

  lifecycle {
    precondition {
      condition     = (local.kms_key_arn == null) == (each.value.kms_key_arn == null)
      error_message = "S3 copies objects that a key encrypts only with a key for the copies: `retention.replica.kms_key_arn` is necessary with a key, and without one it must be absent."
    }
  }
}
