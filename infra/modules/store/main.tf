# The store of a target: one bucket, in which every target has a prefix.
#
#   PREFIX/jobs/ID/…          plan, parts, ledger, logs, result of a job
#   PREFIX/open/ID            the job has not ended
#   PREFIX/schedule/NUMBER    which worker works on which job; reducers keep the last ones
#   PREFIX/queues/NAME        queues of a job that may exist
#   PREFIX/workers/NODE       what a worker offers and does
#   PREFIX/quotas.json        limits of the target and of owners
#   PREFIX/writers/…          which job writes which output
#   PREFIX/snapshots/DIGEST   scripts and reference data, named by their content
#   PREFIX/doctor/…           test objects of `gristmill doctor`

resource "aws_s3_bucket" "store" {
  # checkov:skip=CKV2_AWS_62: nothing consumes events: roles read the bucket, and workers get their work from queues.
  # checkov:skip=CKV_AWS_144: the store contains data of running jobs; `retention.replica` of a target copies its outputs.
  # checkov:skip=CKV_AWS_145: with the key of the platform; without one for trials (environments/dev).
  # checkov:skip=CKV_AWS_18: CloudTrail's data events, which belong to the account, record access.
  # checkov:skip=CKV_AWS_21: commit points are created once and never replaced; see the versioning below, which is a choice.
  bucket        = var.bucket
  force_destroy = var.force_destroy
}

resource "aws_s3_bucket_ownership_controls" "store" {
  bucket = aws_s3_bucket.store.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_public_access_block" "store" {
  bucket = aws_s3_bucket.store.id

  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_server_side_encryption_configuration" "store" {
  bucket = aws_s3_bucket.store.id

  rule {
    bucket_key_enabled = var.kms_key_arn != null

    apply_server_side_encryption_by_default {
      sse_algorithm     = var.kms_key_arn == null ? "AES256" : "aws:kms"
      kms_master_key_id = var.kms_key_arn
    }
  }
}

# For outputs, which users may replace or delete by mistake. The engine needs no versions: a commit point (a ledger segment, a result, a
# schedule) is created if absent and never written again. Its other objects (progress, parts, markers of open jobs) change every few
# seconds, so their versions expire after a day. S3 cannot disable versioning again, only suspend it.
resource "aws_s3_bucket_versioning" "store" {
  bucket = aws_s3_bucket.store.id

  versioning_configuration {
    status = var.retention.version_days == null ? "Disabled" : var.retention.version_days == 0 ? "Suspended" : "Enabled"
  }
}

# S3 rules match only prefixes of names, so the parts, ledger and logs of a job, all below jobs/ID/, expire together, by the
# age of each object. A reducer deletes the parts of a completed job itself, much earlier.
resource "aws_s3_bucket_lifecycle_configuration" "store" {
  # checkov:skip=CKV_AWS_300: the first rule does; checkov looks at another.
  bucket = aws_s3_bucket.store.id

  rule {
    id     = "uploads-of-dead-writers"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      # More than a reducer needs for a large output.
      days_after_initiation = 3
    }
  }

  dynamic "rule" {
    for_each = { jobs = var.job_days, doctor = 1 }

    content {
      id     = "${rule.key}-expire"
      status = "Enabled"

      filter {
        prefix = "${var.prefix}/${rule.key}/"
      }

      expiration {
        days = rule.value
      }
    }
  }

  # Snapshots never expire: jobs reuse an existing one of any age without writing it again.
  rule {
    id     = "snapshots-become-cheaper"
    status = "Enabled"

    filter {
      prefix = "${var.prefix}/snapshots/"
    }

    transition {
      days          = 0
      storage_class = "INTELLIGENT_TIERING"
    }
  }

  # Of two rules S3 follows the one that removes earlier.
  dynamic "rule" {
    for_each = { for id, versions in {
      versions-expire         = { prefix = "", days = coalesce(var.retention.version_days, 0) }
      versions-of-jobs-expire = { prefix = "${var.prefix}/", days = 1 }
    } : id => versions if var.retention.version_days != null }

    content {
      id     = rule.key
      status = "Enabled"

      filter {
        prefix = rule.value.prefix
      }

      noncurrent_version_expiration {
        noncurrent_days = max(1, rule.value.days)
      }

      # A deleted object leaves a marker, which is useless without older versions.
      expiration {
        expired_object_delete_marker = true
      }
    }
  }

  dynamic "rule" {
    for_each = var.retention.cold_days == null && var.retention.output_days == null ? [] : [var.retention]

    content {
      id     = "outputs"
      status = "Enabled"

      filter {
        prefix = "outputs/"
      }

      dynamic "transition" {
        for_each = rule.value.cold_days[*]

        content {
          days          = transition.value
          storage_class = "GLACIER_IR"
        }
      }

      dynamic "expiration" {
        for_each = rule.value.output_days[*]

        content {
          days = expiration.value
        }
      }
    }
  }
}

data "aws_iam_policy_document" "tls_only" {
  dynamic "statement" {
    for_each = {
      RefusePlainHttp = { test = "Bool", variable = "aws:SecureTransport", value = "false" }
      RefuseOldTls    = { test = "NumericLessThan", variable = "s3:TlsVersion", value = "1.2" }
    }

    content {
      sid       = statement.key
      effect    = "Deny"
      actions   = ["s3:*"]
      resources = [aws_s3_bucket.store.arn, "${aws_s3_bucket.store.arn}/*"]

      principals {
        type        = "*"
        identifiers = ["*"]
      }

      condition {
        test     = statement.value.test
        variable = statement.value.variable
        values   = [statement.value.value]
      }
    }
  }
}

# A local emulator has no certificate.
resource "aws_s3_bucket_policy" "tls_only" {
  count = var.allow_plain_http ? 0 : 1

  bucket = aws_s3_bucket.store.id
  policy = data.aws_iam_policy_document.tls_only.json

  # AWS rejects concurrent changes of a bucket's access.
  depends_on = [aws_s3_bucket_public_access_block.store]
}
