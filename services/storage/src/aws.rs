//! AWS settings from the usual sources: environment, profile, web identity, container and instance role.
//!
//! The SDK finds them, and `object_store` gets its credentials from the SDK, so that both use the same principal.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_sdk_s3::config::{RequestChecksumCalculation, ResponseChecksumValidation};
use aws_types::service_config::ServiceConfigKey;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use tokio::sync::Mutex;
use url::Url;

use crate::{Error, Result, StoreOptions};

/// The time before the expiry of credentials at which they are fetched again.
const EXPIRY_MARGIN: Duration = Duration::from_secs(300);

const CONNECT_TIME: Duration = Duration::from_secs(5);
/// The time limit of one attempt of a request: a copy of half a gigabyte is slow.
const ATTEMPT_TIME: Duration = Duration::from_secs(180);
const ATTEMPTS_MAX: u32 = 6;

/// The settings that the SDK has found.
#[derive(Clone, Debug)]
pub(crate) struct Aws {
    pub config: SdkConfig,
    /// The endpoint of S3, if not that of AWS.
    pub endpoint: Option<String>,
}

impl Aws {
    /// Loads the settings. Rejects an invalid endpoint of S3, because the libraries would panic.
    pub async fn load(options: &StoreOptions) -> Result<Self> {
        let mut loader = aws_config::defaults(BehaviorVersion::latest());
        if let Some(region) = &options.region {
            loader = loader.region(Region::new(region.clone()));
        }
        let config = loader.load().await;
        let key = ServiceConfigKey::builder()
            .service_id("S3")
            .env("AWS_ENDPOINT_URL")
            .profile("endpoint_url")
            .build();
        let key = key.expect("all fields are set");
        let of_s3 = config.service_config().and_then(|settings| settings.load_config(key));
        let endpoint =
            options.endpoint.clone().or(of_s3).or_else(|| config.endpoint_url().map(str::to_owned));
        let endpoint = endpoint
            .or_else(|| std::env::var("AWS_ENDPOINT").ok().filter(|value| !value.is_empty()));
        endpoint.as_deref().map_or(Ok(()), check_endpoint)?;
        Ok(Self { config, endpoint })
    }

    /// Returns the credentials for `object_store`.
    pub fn credentials(&self) -> Option<Arc<Credentials>> {
        let provider = self.config.credentials_provider()?;
        Some(Arc::new(Credentials { provider, last: Mutex::new(None) }))
    }

    /// Returns a client for requests that `object_store` does not support.
    pub fn s3(&self) -> aws_sdk_s3::Client {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_TIME)
            .operation_attempt_timeout(ATTEMPT_TIME);
        let mut config = aws_sdk_s3::config::Builder::from(&self.config)
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS_MAX))
            .timeout_config(timeouts.build())
            // Stores of other vendors do not support the newer checksums.
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
        if let Some(endpoint) = &self.endpoint {
            // Emulators and stores of other vendors have no host name for each bucket.
            config = config.endpoint_url(endpoint).force_path_style(true);
        }
        aws_sdk_s3::Client::from_conf(config.build())
    }
}

/// Fails if an endpoint is not an address to which requests can be sent. The message does not quote it, because it may
/// contain a password.
fn check_endpoint(endpoint: &str) -> Result<()> {
    let url = Url::parse(endpoint)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    match url {
        Some(url)
            if url.username().is_empty() && url.password().is_none() && url.query().is_none() =>
        {
            Ok(())
        }
        _ => Err(Error::unavailable(
            "the endpoint of S3",
            "it is not an address such as https://minio.example:9000, without user, password or query; correct `endpoint` \
             of the compute target, AWS_ENDPOINT_URL or AWS_ENDPOINT_URL_S3, or endpoint_url of the AWS profile",
        )),
    }
}

/// The SDK's credentials for `object_store`, cached until shortly before they expire.
#[derive(Debug)]
pub(crate) struct Credentials {
    provider: SharedCredentialsProvider,
    last: Mutex<Option<KnownCredential>>,
}

#[derive(Debug)]
struct KnownCredential {
    credential: Arc<AwsCredential>,
    expiry: Option<SystemTime>,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "no AWS credentials were found in environment, profile, web identity or instance role ({0}); set AWS_PROFILE, or \
     AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
)]
struct NoCredentials(String);

#[async_trait]
impl CredentialProvider for Credentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut last = self.last.lock().await;
        if let Some(known) = &*last
            && known.expiry.is_none_or(|expiry| expiry > SystemTime::now() + EXPIRY_MARGIN)
        {
            return Ok(known.credential.clone());
        }
        let found = self.provider.provide_credentials().await.map_err(|error| {
            object_store::Error::Unauthenticated {
                path: String::new(),
                source: Box::new(NoCredentials(crate::error::short_message(&error))),
            }
        })?;
        let credential = Arc::new(AwsCredential {
            key_id: found.access_key_id().to_owned(),
            secret_key: found.secret_access_key().to_owned(),
            token: found.session_token().map(str::to_owned),
        });
        *last = Some(KnownCredential { credential: credential.clone(), expiry: found.expiry() });
        Ok(credential)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TargetStore;

    #[tokio::test]
    async fn invalid_endpoint_is_rejected_and_not_shown() {
        for endpoint in [
            "",
            " ",
            "minio:9000",
            "minio",
            "//minio",
            "ftp://minio",
            "http://",
            "http://u:s3cr3t@minio",
            "s3cr3t",
        ] {
            let options = StoreOptions {
                endpoint: Some(endpoint.to_owned()),
                region: Some("us-east-1".to_owned()),
            };
            let error = TargetStore::open("s3://bucket/jobs", options).await.expect_err(endpoint);
            let error = format!("{error:#}");
            assert!(
                error.starts_with("the endpoint of S3: it is not an address such as"),
                "{endpoint:?}: {error}"
            );
            assert!(!error.contains("s3cr3t"), "{error}");
        }
        for endpoint in
            ["http://127.0.0.1:4566", "https://minio.example:9000/path/", "http://[::1]:9000"]
        {
            check_endpoint(endpoint).expect(endpoint);
        }
    }
}
