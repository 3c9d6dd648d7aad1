//! A power switch for stores and queues, which stops them before or after the effect of a chosen write.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use queue::{Delivery, Depth, MemoryOptions, MemoryQueue, Message, Queue, Receipt, Receive};

/// Counts the writes of everything connected to it.
#[derive(Debug, Default)]
pub struct Power {
    writes: AtomicUsize,
    /// Number of the first write that fails, from 1; 0: none fails.
    off_at: AtomicUsize,
    /// Whether that write takes effect.
    off_after: bool,
}

impl Power {
    pub fn new(off_at: usize, off_after: bool) -> Arc<Self> {
        Arc::new(Self { writes: AtomicUsize::new(0), off_at: AtomicUsize::new(off_at), off_after })
    }

    /// Returns whether the power is off.
    pub fn is_off(&self) -> bool {
        let off_at = self.off_at.load(Ordering::Relaxed);
        off_at > 0 && self.writes.load(Ordering::Relaxed) >= off_at
    }

    /// Restores the power.
    pub fn restore(&self) {
        self.off_at.store(0, Ordering::Relaxed);
    }

    /// Returns whether the next write takes effect, and whether it is answered.
    fn next_write(&self) -> (bool, bool) {
        let write = self.writes.fetch_add(1, Ordering::Relaxed) + 1;
        match self.off_at.load(Ordering::Relaxed) {
            0 => (true, true),
            off_at if write < off_at => (true, true),
            off_at => (write == off_at && self.off_after, false),
        }
    }
}

/// A queue in memory that needs power.
#[derive(Debug)]
pub struct PoweredQueue {
    power: Arc<Power>,
    inner: MemoryQueue,
}

impl PoweredQueue {
    pub fn new(power: &Arc<Power>) -> Arc<Self> {
        Arc::new(Self {
            power: Arc::clone(power),
            inner: MemoryQueue::new(MemoryOptions::default()),
        })
    }

    /// Returns the queue behind the switch.
    pub fn inner(&self) -> &MemoryQueue {
        &self.inner
    }

    /// Returns all messages sent so far.
    pub async fn bodies(&self) -> Vec<Bytes> {
        let request =
            Receive { messages_max: usize::MAX, visibility: HOUR, wait: std::time::Duration::ZERO };
        let mut bodies = Vec::new();
        loop {
            let deliveries = self.inner.receive(request).await.expect("in memory");
            if deliveries.is_empty() {
                return bodies;
            }
            bodies.extend(deliveries.into_iter().map(|delivery| delivery.body));
        }
    }
}

const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);

#[async_trait]
impl Queue for PoweredQueue {
    async fn send(&self, messages: Vec<Message>) -> std::result::Result<(), queue::Error> {
        let (has_effect, is_answered) = self.power.next_write();
        if has_effect {
            self.inner.send(messages).await?;
        }
        let off = || queue::Error::Misconfigured {
            queue: "memory".to_owned(),
            source: "the power is off".into(),
        };
        is_answered.then_some(()).ok_or_else(off)
    }

    async fn receive(&self, request: Receive) -> std::result::Result<Vec<Delivery>, queue::Error> {
        self.inner.receive(request).await
    }

    async fn extend(
        &self,
        leases: &[(Receipt, std::time::Duration)],
    ) -> std::result::Result<Vec<Receipt>, queue::Error> {
        self.inner.extend(leases).await
    }

    async fn acknowledge(
        &self,
        receipts: &[Receipt],
    ) -> std::result::Result<Vec<Receipt>, queue::Error> {
        self.inner.acknowledge(receipts).await
    }

    async fn release(&self, receipts: &[Receipt]) -> std::result::Result<(), queue::Error> {
        self.inner.release(receipts).await
    }

    async fn depth(&self) -> std::result::Result<Depth, queue::Error> {
        self.inner.depth().await
    }

    fn limits(&self) -> queue::Limits {
        self.inner.limits()
    }
}

/// A store in memory that needs power.
#[derive(Debug)]
pub struct PoweredStore {
    power: Arc<Power>,
    inner: InMemory,
}

impl PoweredStore {
    pub fn new(power: &Arc<Power>) -> Arc<Self> {
        Arc::new(Self { power: Arc::clone(power), inner: InMemory::new() })
    }
}

impl fmt::Display for PoweredStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a store with a power switch")
    }
}

#[async_trait]
impl ObjectStore for PoweredStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let (has_effect, is_answered) = self.power.next_write();
        let off =
            || object_store::Error::Generic { store: "memory", source: "the power is off".into() };
        if !has_effect {
            return Err(off());
        }
        let put = self.inner.put_opts(location, payload, options).await;
        if is_answered { put } else { Err(off()) }
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
