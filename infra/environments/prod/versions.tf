terraform {
  # Where the state is: `terraform init -backend-config=bucket=… -backend-config=key=… -backend-config=region=…`.
  # It holds the password of a broker, if there is one.
  backend "s3" {
    encrypt      = true
    use_lockfile = true
  }

  required_version = ">= 1.11.0, < 2.0.0"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "5.100.0"
    }
  }
}
