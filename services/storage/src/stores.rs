//! Opens the store of a URL, always with the settings of the compute target.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreScheme};
use tokio::sync::OnceCell;
use url::{Position, Url};

use crate::aws::Aws;
use crate::clock::{Clock, ClockConnector};
use crate::error::Answer;
use crate::folder::Folder;
use crate::listing::SkippedKeys;
use crate::{Error, Result, web};

/// The settings of stores, in addition to the usual variables and files of the vendors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreOptions {
    /// The endpoint of S3, if not that of AWS: an emulator, or a store of another vendor. Overrides
    /// `AWS_ENDPOINT_URL_S3` and `AWS_ENDPOINT_URL`.
    pub endpoint: Option<String>,
    /// The region, which overrides that of the AWS settings.
    pub region: Option<String>,
}

/// Open stores, which clones share. They belong to one Tokio runtime, because their connections do.
///
/// AWS settings come from the usual sources (environment, profile, web identity, instance role), those of other vendors
/// from their variables (`AZURE_…`, `GOOGLE_…`).
#[derive(Clone, Debug, Default)]
pub struct Stores(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    options: StoreOptions,
    aws: OnceCell<Aws>,
    opened: Mutex<HashMap<String, Opened>>,
    unnameable: SkippedKeys,
}

#[derive(Clone, Debug)]
struct Opened {
    store: Arc<dyn ObjectStore>,
    clock: Clock,
}

impl Stores {
    /// Creates the value without opening a store.
    pub fn new(options: StoreOptions) -> Self {
        Self(Arc::new(Inner { options, ..Inner::default() }))
    }

    /// Returns the settings.
    pub fn options(&self) -> &StoreOptions {
        &self.0.options
    }

    /// Returns keys that listings skipped, because no path can name them: only the first ones, in order.
    pub fn unnameable_keys(&self) -> Vec<String> {
        self.0.unnameable.keys()
    }

    /// Uses `store` for all URLs of the host and port, or bucket, of `url`.
    pub fn stand_in(&self, url: &Url, store: Arc<dyn ObjectStore>) {
        let opened = Opened { store, clock: Clock::default() };
        self.0.opened.lock().expect("no panic while it was held").insert(key(url), opened);
    }

    /// Returns the store of a URL, and the path in it. Sends no request.
    pub async fn open(&self, url: &Url) -> Result<(Arc<dyn ObjectStore>, ObjectPath)> {
        let (Opened { store, .. }, path) = self.opened(url).await?;
        Ok((store, path))
    }

    /// Returns the clock of the store of a URL. Sends no request.
    pub(crate) async fn clock(&self, url: &Url) -> Result<Clock> {
        Ok(self.opened(url).await?.0.clock)
    }

    async fn opened(&self, url: &Url) -> Result<(Opened, ObjectPath)> {
        let unavailable =
            |error: object_store::Error| Error::unavailable(&shown(url), Answer(error));
        let (scheme, path) =
            ObjectStoreScheme::parse(url).map_err(|error| unavailable(error.into()))?;
        let key = key(url);
        if let Some(opened) = self.0.opened.lock().expect("no panic while it was held").get(&key) {
            return Ok((opened.clone(), path));
        }
        let clock = Clock::default();
        let connector =
            ClockConnector { clock: clock.clone(), unnameable: self.0.unnameable.clone() };
        let store = match scheme {
            ObjectStoreScheme::AmazonS3 => self.s3(url, self.aws().await?, connector),
            ObjectStoreScheme::GoogleCloudStorage => google(url, connector),
            ObjectStoreScheme::MicrosoftAzure => azure(url, connector),
            ObjectStoreScheme::Http => web::open(url),
            ObjectStoreScheme::Local => Ok(Box::new(self.files()) as _),
            _ => object_store::parse_url_opts(url, variables(url)).map(|(store, _)| store),
        };
        let opened = Opened { store: Arc::from(store.map_err(unavailable)?), clock };
        let mut all = self.0.opened.lock().expect("no panic while it was held");
        Ok((all.entry(key).or_insert(opened).clone(), path))
    }

    /// Returns the files of this machine.
    pub(crate) fn files(&self) -> Folder {
        Folder::new(LocalFileSystem::new(), self.0.unnameable.clone())
    }

    fn s3(
        &self,
        url: &Url,
        aws: &Aws,
        connector: ClockConnector,
    ) -> object_store::Result<Box<dyn ObjectStore>> {
        let mut builder =
            AmazonS3Builder::new().with_url(url.as_str()).with_http_connector(connector);
        for (name, value) in variables(url) {
            // `aws` has the endpoint, which takes precedence.
            if let Ok(key) = name.parse()
                && !name.starts_with("aws_endpoint")
            {
                builder = builder.with_config(key, value);
            }
        }
        if let Some(region) = aws.config.region() {
            builder = builder.with_region(region.as_ref());
        }
        if let Some(endpoint) = &aws.endpoint {
            builder =
                builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
        }
        if let Some(credentials) = aws.credentials() {
            builder = builder.with_credentials(credentials);
        }
        builder.build().map(|store| Box::new(store) as _)
    }

    /// Requests the bucket of a URL from S3, and returns the HTTP status. Returns `None` if the URL is not one of S3,
    /// or if S3 does not answer.
    pub(crate) async fn bucket_status(&self, url: &Url) -> Option<u16> {
        if !matches!(url.scheme(), "s3" | "s3a") {
            return None;
        }
        match self.aws().await.ok()?.s3().head_bucket().bucket(url.host_str()?).send().await {
            Ok(_) => Some(200),
            Err(error) => error.raw_response().map(|response| response.status().as_u16()),
        }
    }

    /// Returns the endpoint of the S3 store of `url`, if it is not that of AWS.
    pub(crate) async fn endpoint(&self, url: &Url) -> Option<&str> {
        match url.scheme() {
            "s3" | "s3a" => self.aws().await.ok()?.endpoint.as_deref(),
            _ => None,
        }
    }

    pub(crate) async fn aws(&self) -> Result<&Aws> {
        self.0.aws.get_or_try_init(|| Aws::load(&self.0.options)).await
    }
}

fn google(url: &Url, connector: ClockConnector) -> object_store::Result<Box<dyn ObjectStore>> {
    let builder =
        GoogleCloudStorageBuilder::new().with_url(url.as_str()).with_http_connector(connector);
    let builder = variables(url).fold(builder, |builder, (name, value)| match name.parse() {
        Ok(key) => builder.with_config(key, value),
        Err(_) => builder,
    });
    Ok(Box::new(builder.build()?))
}

fn azure(url: &Url, connector: ClockConnector) -> object_store::Result<Box<dyn ObjectStore>> {
    let builder =
        MicrosoftAzureBuilder::new().with_url(url.as_str()).with_http_connector(connector);
    let builder = variables(url).fold(builder, |builder, (name, value)| match name.parse() {
        Ok(key) => builder.with_config(key, value),
        Err(_) => builder,
    });
    Ok(Box::new(builder.build()?))
}

/// Returns the common part of the URLs of one store.
fn key(url: &Url) -> String {
    // Some `https` URLs have the bucket as the first segment of their path.
    let bucket = url.path_segments().and_then(|mut segments| segments.next()).unwrap_or_default();
    let bucket = if url.scheme() == "https" { bucket } else { "" };
    format!("{}/{bucket}", &url[..Position::BeforePath])
}

/// Returns the environment variables of the vendors, with the names of the options of `object_store`.
fn variables(url: &Url) -> impl Iterator<Item = (String, String)> {
    // Options also have short names, but a variable `TOKEN` or `REGION` is not meant for a store.
    let is_of_vendor =
        |name: &str| ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|prefix| name.starts_with(prefix));
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let variables = variables
        .filter(move |(name, _)| is_of_vendor(name))
        .map(|(name, value)| (name.to_ascii_lowercase(), value));
    // An explicit `http` is intentional.
    variables.chain((url.scheme() == "http").then(|| ("allow_http".to_owned(), "true".to_owned())))
}

/// Returns a URL for people, without its secrets.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // These fail for a URL without a host, which has no user either.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.into()
}
