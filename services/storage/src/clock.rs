//! The clock of a store, which dates its objects.
//!
//! The clocks of two machines may be an hour apart, so no role compares the date of an object with its own clock, or
//! with that of another role. A store reports its time in the `Date` of each HTTP response, and the server of a shared
//! folder in the date of a new file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use tokio::time::Instant;

use crate::listing::{ListingClient, SkippedKeys};
use crate::random_name;

/// The interval at which the clock of a folder is read. Between two readings it is extrapolated.
const READ_INTERVAL: Duration = Duration::from_secs(60);

/// The clock of a store. Clones share the last reported time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The folder, if the store is one.
    folder: Option<PathBuf>,
    /// The last date that the store reported, and when this process received it, by its own clock.
    last: Mutex<Option<(DateTime<Utc>, Instant)>>,
}

impl Clock {
    /// Creates the clock of the server of a folder.
    pub fn of_folder(folder: &Path) -> Self {
        Self(Arc::new(Inner { folder: Some(folder.to_owned()), last: Mutex::default() }))
    }

    /// Returns the time; `None` if the store has not reported it, and this process cannot create a file to read it.
    pub fn reported(&self) -> Option<DateTime<Utc>> {
        let last = *self.0.last.lock().expect("no panic while it was held");
        if let Some(folder) = &self.0.folder
            && last.is_none_or(|(_, at)| at.elapsed() >= READ_INTERVAL)
            && let Some(date) = date_of_new_file(folder)
        {
            self.record(date);
            return Some(date);
        }
        last.map(|(date, at)| date + at.elapsed())
    }

    /// Returns the time, or that of this machine if the store does not report it.
    pub fn now(&self) -> DateTime<Utc> {
        self.reported().unwrap_or_else(Utc::now)
    }

    /// Records the current time of the store.
    pub fn record(&self, date: DateTime<Utc>) {
        *self.0.last.lock().expect("no panic while it was held") = Some((date, Instant::now()));
    }
}

/// Creates a file, removes it, and returns its date; `None` if this process cannot create files in the folder.
fn date_of_new_file(folder: &Path) -> Option<DateTime<Utc>> {
    let path = folder.join(format!(".clock-{}", random_name()));
    let date = std::fs::File::create_new(&path).and_then(|file| file.metadata()?.modified());
    // The removal fails only if the file was not created.
    let _ = std::fs::remove_file(&path);
    date.ok().map(DateTime::from)
}

/// Connects to a store with a client that records the time of each response, and removes keys that no path can name
/// from listings.
#[derive(Debug)]
pub(crate) struct ClockConnector {
    pub clock: Clock,
    pub unnameable: SkippedKeys,
}

impl HttpConnector for ClockConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        let client = HttpClient::new(ClockClient { client, clock: self.clock.clone() });
        Ok(HttpClient::new(ListingClient { client, unnameable: self.unnameable.clone() }))
    }
}

#[derive(Debug)]
struct ClockClient {
    client: HttpClient,
    clock: Clock,
}

#[async_trait]
impl HttpService for ClockClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.client.execute(request).await?;
        let date = response.headers().get("date").and_then(|date| date.to_str().ok());
        if let Some(date) = date.and_then(|date| DateTime::parse_from_rfc2822(date).ok()) {
            self.clock.record(date.into());
        }
        Ok(response)
    }
}

#[cfg(test)]
mod tests;
