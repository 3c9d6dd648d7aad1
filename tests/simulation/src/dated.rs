//! Objects in memory that are dated by virtual time: whether an entry of a worker is stale, and which job came first,
//! depends on dates.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::time::Instant;

/// When virtual time begins, after the epoch.
const BEGINNING: Duration = Duration::from_secs(1_800_000_000);

type Dates = Arc<Mutex<HashMap<Path, DateTime<Utc>>>>;

/// A store in memory.
#[derive(Debug)]
pub(crate) struct Dated {
    memory: InMemory,
    began: Instant,
    dates: Dates,
}

impl Dated {
    pub fn new() -> Self {
        Self { memory: InMemory::new(), began: Instant::now(), dates: Arc::default() }
    }

    /// Returns the virtual time.
    pub fn now(&self) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + BEGINNING + self.began.elapsed()
    }

    fn date(&self, location: &Path) {
        let now = self.now();
        self.dates.lock().expect("no holder panics").insert(location.clone(), now);
    }
}

fn dated(dates: &Dates, meta: ObjectMeta) -> ObjectMeta {
    let date = dates.lock().expect("no holder panics").get(&meta.location).copied();
    ObjectMeta { last_modified: date.unwrap_or(DateTime::UNIX_EPOCH + BEGINNING), ..meta }
}

impl fmt::Display for Dated {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("memory in virtual time")
    }
}

#[async_trait]
impl ObjectStore for Dated {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let put = self.memory.put_opts(location, payload, options).await?;
        self.date(location);
        Ok(put)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.memory.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let got = self.memory.get_opts(location, options).await?;
        Ok(GetResult { meta: dated(&self.dates, got.meta.clone()), ..got })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.memory.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let dates = self.dates.clone();
        self.memory.list(prefix).map_ok(move |meta| dated(&dates, meta)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let listed = self.memory.list_with_delimiter(prefix).await?;
        let objects = listed.objects.into_iter().map(|meta| dated(&self.dates, meta)).collect();
        Ok(ListResult { objects, ..listed })
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.memory.copy_opts(from, to, options).await?;
        self.date(to);
        Ok(())
    }
}
