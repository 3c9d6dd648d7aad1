output "url" {
  description = "`store` of the target."
  value       = "s3://${aws_s3_bucket.store.bucket}/${var.prefix}"
}

output "bucket" {
  description = "Name of the bucket."
  value       = aws_s3_bucket.store.bucket
}

output "prefix" {
  description = "Prefix of the target's objects in the bucket."
  value       = var.prefix
}
