output "job_queue" {
  description = "The job queue, for `aws batch submit-job --job-queue`."
  value       = aws_batch_job_queue.this.name
}

output "job_definitions" {
  description = "The job definitions of worker and reducer, for `--job-definition`."
  value       = { for role, definition in aws_batch_job_definition.role : role => definition.name }
}

output "fields" {
  description = "Fields of `batch`, for callers that pass it on as `any`."
  value       = keys(var.batch)
}
