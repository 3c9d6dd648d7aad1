# The store of a target: one bucket, in which every target has a prefix.
#
#   PREFIX/jobs/ID/…          plan, parts, ledger, logs, result of a job
#   PREFIX/open/ID            the job has not ended
#   PREFIX/snapshots/DIGEST   scripts and reference data, named by their content
#   PREFIX/doctor/…           what `gristmill doctor` tries

resource "aws_s3_bucket" "store" {
  # checkov:skip=CKV2_AWS_62: nobody waits for events: roles look into the bucket, and workers get their work by queue.
  # checkov:skip=CKV_AWS_144: the store holds what jobs need while they run; outputs are copied by who keeps them.
  # checkov:skip=CKV_AWS_18: who reads and writes is in CloudTrail's data events, which belong to the account.
  # checkov:skip=CKV_AWS_21: commit points are created once and never replaced: see the versioning below.
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

# Off, and off for good. A commit point (a ledger segment, a result, a seat) is created if it is absent, and is never
# written again: there is no older version of it to go back to. What is replaced or deleted (progress, parts, markers of
# open jobs) would only be paid for once more, and a deleted part would stay as a version that no rule of a job removes.
resource "aws_s3_bucket_versioning" "store" {
  bucket = aws_s3_bucket.store.id

  versioning_configuration {
    status = "Disabled"
  }
}

# S3 knows only beginnings of names, so that parts, ledger and logs of a job, all of them below jobs/ID/, end together,
# by the age of each object. A reducer deletes the parts of a completed job itself, long before.
resource "aws_s3_bucket_lifecycle_configuration" "store" {
  bucket = aws_s3_bucket.store.id

  rule {
    id     = "uploads-of-dead-writers"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = var.upload_days
    }
  }

  rule {
    id     = "jobs-with-parts-ledgers-and-logs"
    status = "Enabled"

    filter {
      prefix = "${var.prefix}/jobs/"
    }

    expiration {
      days = var.job_days
    }
  }

  rule {
    id     = "probes-of-doctor"
    status = "Enabled"

    filter {
      prefix = "${var.prefix}/doctor/"
    }

    expiration {
      days = 1
    }
  }

  # Never expired: a snapshot that is there is used again without being written again, however old it is.
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
}

data "aws_iam_policy_document" "tls_only" {
  statement {
    sid       = "RefusePlainHttp"
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [aws_s3_bucket.store.arn, "${aws_s3_bucket.store.arn}/*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }

  statement {
    sid       = "RefuseOldTls"
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [aws_s3_bucket.store.arn, "${aws_s3_bucket.store.arn}/*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "NumericLessThan"
      variable = "s3:TlsVersion"
      values   = ["1.2"]
    }
  }
}

# An emulator on this machine has no certificate.
resource "aws_s3_bucket_policy" "tls_only" {
  count = var.allow_plain_http ? 0 : 1

  bucket = aws_s3_bucket.store.id
  policy = data.aws_iam_policy_document.tls_only.json

  # AWS refuses two changes of a bucket's access at a time.
  depends_on = [aws_s3_bucket_public_access_block.store]
}
