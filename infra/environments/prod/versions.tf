terraform {
  # Location of the state: `terraform init -backend-config=bucket=… -backend-config=key=… -backend-config=region=…`.
  # The state contains the initial password of a broker's administrator, if there is one.
  backend "s3" {
    encrypt      = true
    use_lockfile = true
  }

  required_version = ">= 1.11.0, < 2.0.0"

  required_providers {
    aws = { source = "hashicorp/aws", version = ">= 5.100.0, < 7.0.0" }
  }
}
