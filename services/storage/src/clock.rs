//! The clock of a store, which dates its objects.
//!
//! The clocks of two machines may be an hour apart, so no role compares the date of an object with its own clock, or
//! with that of another role. A store tells the time in the `Date` of each HTTP response, and the server of a shared
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

/// How long the clock of a folder is extrapolated before it is read again.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The clock of a store. Clones share what it has told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The folder, if the store is one.
    folder: Option<PathBuf>,
    /// The last date from the store, and when this process received it, by its own clock.
    told: Mutex<Option<(DateTime<Utc>, Instant)>>,
}

impl Clock {
    /// The clock of the server of a folder.
    pub fn of_folder(folder: &Path) -> Self {
        Self(Arc::new(Inner { folder: Some(folder.to_owned()), told: Mutex::default() }))
    }

    /// Returns the time; `None` if the store has not told it, and may not be asked.
    pub fn told(&self) -> Option<DateTime<Utc>> {
        let told = *self.0.told.lock().expect("no panic while it was held");
        if let Some(folder) = &self.0.folder
            && told.is_none_or(|(_, at)| at.elapsed() >= LOOK_EVERY)
        {
            let date = date_of_new_file(folder)?;
            self.tell(date);
            return Some(date);
        }
        told.map(|(date, at)| date + at.elapsed())
    }

    /// Returns the time, that of this machine if the store does not tell it.
    pub fn now(&self) -> DateTime<Utc> {
        self.told().unwrap_or_else(Utc::now)
    }

    /// Records the time.
    pub fn tell(&self, date: DateTime<Utc>) {
        *self.0.told.lock().expect("no panic while it was held") = Some((date, Instant::now()));
    }
}

/// Creates a file, removes it, and returns its date; `None` if this process cannot create files there.
fn date_of_new_file(folder: &Path) -> Option<DateTime<Utc>> {
    let path = folder.join(format!(".clock-{}", random_name()));
    let date = std::fs::File::create_new(&path).and_then(|file| file.metadata()?.modified());
    // Fails only if the file was not created.
    let _ = std::fs::remove_file(&path);
    date.ok().map(DateTime::from)
}

/// Connects to a store that tells its clock the time, and whose listings have only keys that a path can name.
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
            self.clock.tell(date.into());
        }
        Ok(response)
    }
}

#[cfg(test)]
mod tests;
