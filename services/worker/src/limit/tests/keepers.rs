//! The real keepers of many nodes over one store, in paused time: requests that take long and get no answer; nodes that join,
//! end and die.

use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use queue::{LeaseClock, ManualSleep};
use storage::{JobStore, LimitBook};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::super::keeper::Keeper;
use super::nodes::Chance;
use super::*;

const TICK: Duration = Duration::from_millis(50);
const LIMIT: u64 = 600;

/// A mistake that the simulation must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// Once a node has a share, it renews it where no other node looks.
    SkipsRenewals,
}

/// The store as one node sees it.
#[derive(Debug)]
struct StoreLayer {
    node: String,
    shared: Arc<InMemory>,
    /// Where a buggy node reads and renews its share.
    own: InMemory,
    bug: Bug,
    state: Mutex<LayerState>,
}

#[derive(Debug)]
struct LayerState {
    chance: Chance,
    cut_off_until: Instant,
    /// Whether the node has written a book in which it has a share.
    has_share: bool,
}

impl fmt::Display for StoreLayer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the store as a node sees it")
    }
}

impl StoreLayer {
    fn state(&self) -> std::sync::MutexGuard<'_, LayerState> {
        self.state.lock().expect("no holder panics")
    }

    /// Takes some time, or as long as the store does not answer this node.
    async fn delay(&self) {
        let (pause, until) = {
            let mut state = self.state();
            (state.chance.milliseconds(300), state.cut_off_until)
        };
        sleep(pause).await;
        sleep_until(until).await;
    }

    fn inner(&self) -> &InMemory {
        if self.bug == Bug::SkipsRenewals && self.state().has_share { &self.own } else { &self.shared }
    }

    /// Whether this node has a share in a book.
    fn is_share(&self, book: PutPayload) -> bool {
        let book: LimitBook = serde_json::from_slice(&Bytes::from(book)).expect("a book");
        book.entries.iter().any(|entry| entry.node == self.node && entry.parts > 0)
    }
}

#[async_trait]
impl ObjectStore for StoreLayer {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.delay().await;
        let answer = self.inner().put_opts(location, payload.clone(), options).await;
        if answer.is_ok() && self.is_share(payload.clone()) {
            self.own.put(location, payload).await?;
            self.state().has_share = true;
        }
        // The answer may be late, too.
        self.delay().await;
        answer
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner().put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.delay().await;
        self.inner().get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner().delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner().list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner().list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner().copy_opts(from, to, options).await
    }
}

struct Node {
    keeper: Arc<Keeper>,
    layer: Arc<StoreLayer>,
    /// Asks, and uses what it is granted.
    user: AbortOnDropHandle<()>,
}

struct World {
    shared: Arc<InMemory>,
    nodes: Vec<Node>,
    started: u64,
    chance: Chance,
    bug: Bug,
    uses: Arc<Mutex<Vec<(std::time::Instant, u64)>>>,
}

impl World {
    fn new(seed: u64, bug: Bug) -> Self {
        Self {
            shared: Arc::default(),
            nodes: Vec::new(),
            started: 0,
            chance: Chance::new(seed),
            bug,
            uses: Arc::default(),
        }
    }

    fn join(&mut self) {
        self.started += 1;
        // One of the nodes has the bug.
        let bug = if self.started == 1 { self.bug } else { Bug::None };
        let node = format!("node {}", self.started);
        let chance = Chance::new(self.chance.below(1000));
        let state = Mutex::new(LayerState { chance, cut_off_until: Instant::now(), has_share: false });
        let (shared, own) = (self.shared.clone(), InMemory::new());
        let layer = Arc::new(StoreLayer { node: node.clone(), shared, own, bug, state });
        let clock = LeaseClock::Manual(ManualSleep::default());
        let limits = limits(LIMIT, 0, 0);
        let limiter = Arc::new(Mutex::new(Limiter::new(limits, clock.now().into_std())));
        let store = JobStore::new(layer.clone(), Path::default());
        let keeper = Arc::new(Keeper::start(store, node, limits, limiter.clone(), clock.clone()));
        let user = tokio::spawn(use_it(keeper.clone(), limiter, clock, self.uses.clone()));
        self.nodes.push(Node { keeper, layer, user: AbortOnDropHandle::new(user) });
    }

    /// Lets nodes join, end, die, and lose the store, at random.
    async fn disturb(&mut self, rounds: u64) {
        for _ in 0..rounds {
            let (what, count) = (self.chance.below(6), self.nodes.len() as u64);
            let index = self.chance.below(count) as usize;
            match what {
                0 if count < 6 => self.join(),
                1 if count > 1 => drop(self.nodes.remove(index)),
                2 if count > 1 => self.nodes.remove(index).leave().await,
                3 | 4 => {
                    let until = Instant::now() + self.chance.milliseconds(60_000);
                    self.nodes[index].layer.state().cut_off_until = until;
                }
                _ => {}
            }
            sleep(Duration::from_secs(5 + self.chance.below(20))).await;
        }
    }

    /// Returns the largest minute as a part of the limit, and the number of uses.
    fn most(&self) -> (f64, usize) {
        let uses = self.uses.lock().expect("no holder panics");
        (most_in_a_minute(&uses) as f64 / LIMIT as f64, uses.len())
    }
}

impl Node {
    async fn leave(self) {
        let Self { keeper, user, .. } = self;
        user.abort();
        let _ = user.await;
        if let Some(keeper) = Arc::into_inner(keeper) {
            keeper.leave().await;
        }
    }
}

/// Makes as many requests as the limits allow.
async fn use_it(
    keeper: Arc<Keeper>,
    limiter: Arc<Mutex<Limiter>>,
    clock: LeaseClock,
    uses: Arc<Mutex<Vec<(std::time::Instant, u64)>>>,
) {
    let mut asked = 0;
    loop {
        sleep(TICK).await;
        let now = clock.now().into_std();
        let mut limiter = limiter.lock().expect("no holder panics");
        while limiter.waiting.len() < 8 {
            asked += 1;
            limiter.ask(ask(0, asked, 0), now);
        }
        let granted = limiter.grant(now).into_iter().map(|_| (now, 1));
        uses.lock().expect("no holder panics").extend(granted);
        keeper.wake();
    }
}

async fn disturbed(seed: u64, bug: Bug) -> (f64, usize) {
    let mut world = World::new(seed, bug);
    (0..1 + seed % 4).for_each(|_| world.join());
    world.disturb(14).await;
    world.most()
}

#[tokio::test(start_paused = true)]
async fn keepers_hold_the_limit_when_nodes_fail() {
    for seed in 1..20 {
        let (most, uses) = disturbed(seed, Bug::None).await;
        assert!(most <= 1.05, "seed {seed}: {most:.3}");
        assert!(uses > 100, "seed {seed}: {uses} uses");
    }
}

#[tokio::test(start_paused = true)]
async fn simulation_of_keepers_finds_a_planted_bug() {
    for seed in 1..50 {
        if disturbed(seed, Bug::SkipsRenewals).await.0 > 1.05 {
            return;
        }
    }
    panic!("{:?} was not found", Bug::SkipsRenewals);
}
