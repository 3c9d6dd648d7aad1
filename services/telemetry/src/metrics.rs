//! The metrics of a role, under the names that a Prometheus scrape shows.
//!
//! Names follow the OpenTelemetry conventions for messaging; the others begin with `gristmill_`. Every series exists
//! from the start, so that an alert gets a zero instead of no data. `OBSERVABILITY.md` describes each metric, and a
//! test compares it with a scrape.
//!
//! Counters are atomic. For quick mini-batches, a worker updates them once for many.
//!
//! To add a metric, add its field here, register it in `show_worker` or `show_reducer`, record it where the event
//! happens (for announced attempts: `worker/src/counts.rs`), and add its row to `OBSERVABILITY.md`. Dashboard and
//! alerts are in `infra/observability`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, SystemTime};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};
use protocol::{WEARS, WaitsFor};

/// The names and values of the labels of a series.
pub type Labels<const COUNT: usize> = [(&'static str, &'static str); COUNT];
/// A label whose value is not known beforehand.
pub type OwnLabel = [(&'static str, String); 1];
/// A gauge whose value has a fraction.
pub type FloatGauge = Gauge<f64, AtomicU64>;

/// The label for a queue of a target.
pub const DESTINATION: &str = "messaging_destination_name";
/// The label for an operation on a queue or a message.
pub const OPERATION: &str = "messaging_operation_name";
/// The label for the kind of an error; empty for a success.
pub const ERROR: &str = "error_type";
/// The label for the outcome of an event.
pub const OUTCOME: &str = "outcome";
/// The label for the cause of an event.
pub const CAUSE: &str = "cause";
/// The label for the state of a process, a job or a message.
pub const STATE: &str = "state";
/// The label for the requirements of a job.
pub const REQUIRES: &str = "requires";
/// The label for the reason why a job has no process.
pub const REASON: &str = "reason";

/// The [`REQUIRES`] of jobs that any node may run.
pub const ANY: &str = "any";
/// The [`REQUIRES`] of jobs that need a GPU.
pub const GPU: &str = "1 GPU";

/// The destination of descriptors.
pub const TASKS: &str = "tasks";
/// The destination of outcomes.
pub const RESULTS: &str = "results";
/// The destination of messages that cannot be read.
pub const DEAD_LETTERS: &str = "dead-letters";

/// The buckets of calls, from a quick local call to a long poll.
const CALL_SECONDS: [f64; 12] =
    [0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 10.0, 30.0];
/// The buckets of attempts, from an empty run to the longest run that jobs allow in practice.
const PROCESS_SECONDS: [f64; 14] =
    [0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0];

/// Every metric of this process, recorded whether or not it is scraped.
#[derive(Debug)]
pub struct Metrics {
    /// Calls of a queue: [`DESTINATION`], [`OPERATION`], [`ERROR`].
    pub queue_calls: Family<Labels<3>, Histogram, fn() -> Histogram>,
    /// Messages sent, by [`DESTINATION`].
    pub messages_sent: Family<Labels<2>, Counter>,
    /// Messages received, by [`DESTINATION`].
    pub messages_consumed: Family<Labels<2>, Counter>,
    /// Jobs that the worker has, or (of a reducer) open jobs of the target.
    pub jobs_open: Gauge,
    /// When the role last announced an attempt or committed a result, in seconds since the epoch.
    pub last_progress: FloatGauge,
    /// Attempts of a worker, from hand-over to end: [`DESTINATION`], [`OPERATION`], [`ERROR`].
    pub process_seconds: Family<Labels<3>, Histogram, fn() -> Histogram>,
    /// Attempts that were announced, by [`OUTCOME`].
    pub attempts: Family<Labels<1>, Counter>,
    /// Items of attempts that were announced, by [`OUTCOME`].
    pub items: Family<Labels<1>, Counter>,
    /// Bytes of rows that were announced.
    pub row_bytes: Counter,
    /// Python processes, by [`STATE`].
    pub processes: Family<Labels<1>, Gauge>,
    /// Live processes that were replaced, by [`CAUSE`].
    pub processes_replaced: Family<Labels<1>, Counter>,
    /// The size of the caches of this machine, as the worker last measured it.
    pub cache_bytes: Gauge,
    /// Entries that were evicted from the caches, by [`CAUSE`].
    pub cache_evictions: Family<Labels<1>, Counter>,
    /// Deliveries that the worker holds under a lease.
    pub leases_held: Gauge,
    /// Leases that ended before the work was announced.
    pub leases_lost: Counter,
    /// Mini-batches that ended, by [`OUTCOME`].
    pub mini_batches: Family<Labels<1>, Counter>,
    /// Commits to ledgers, by [`OUTCOME`].
    pub commit_seconds: Family<Labels<1>, Histogram, fn() -> Histogram>,
    /// Bytes committed to ledgers.
    pub ledger_bytes: Counter,
    /// Attempts that were delivered again although they were committed.
    pub duplicates_dropped: Counter,
    /// Jobs that ended, by [`STATE`].
    pub jobs_ended: Family<Labels<1>, Counter>,
    /// The approximate number of messages in the dead-letter queue: [`DESTINATION`], [`STATE`].
    pub queue_messages: Family<Labels<2>, Gauge>,
    /// Processes that the open jobs of the target could use, by [`REQUIRES`].
    pub processes_wanted: Family<OwnLabel, Gauge>,
    /// Mini-batches of the open jobs of the target that have not ended.
    pub mini_batches_unfinished: Gauge,
    /// Open jobs of the target without a process, by [`REASON`].
    pub jobs_waiting: Family<Labels<1>, Gauge>,
    wanted: Mutex<BTreeMap<String, u64>>,
}

/// A role, which selects the metrics of a scrape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `gristmill worker`.
    Worker,
    /// `gristmill reducer`.
    Reducer,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Reducer => "reducer",
        }
    }
}

/// Returns the metrics of this process.
pub fn metrics() -> &'static Metrics {
    static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);
    &METRICS
}

impl Metrics {
    fn new() -> Self {
        Self {
            queue_calls: Family::new_with_constructor(|| Histogram::new(CALL_SECONDS)),
            messages_sent: Family::default(),
            messages_consumed: Family::default(),
            jobs_open: Gauge::default(),
            last_progress: FloatGauge::default(),
            process_seconds: Family::new_with_constructor(|| Histogram::new(PROCESS_SECONDS)),
            attempts: Family::default(),
            items: Family::default(),
            row_bytes: Counter::default(),
            processes: Family::default(),
            processes_replaced: Family::default(),
            cache_bytes: Gauge::default(),
            cache_evictions: Family::default(),
            leases_held: Gauge::default(),
            leases_lost: Counter::default(),
            mini_batches: Family::default(),
            commit_seconds: Family::new_with_constructor(|| Histogram::new(CALL_SECONDS)),
            ledger_bytes: Counter::default(),
            duplicates_dropped: Counter::default(),
            jobs_ended: Family::default(),
            queue_messages: Family::default(),
            processes_wanted: Family::default(),
            mini_batches_unfinished: Gauge::default(),
            jobs_waiting: Family::default(),
            wanted: Mutex::default(),
        }
    }

    /// Sets how many processes the open jobs could use, by their requirements. Requirements that no job has any more
    /// stay, with zero, so that scaling rules see them. [`ANY`] and [`GPU`] always exist.
    pub fn want(&self, wanted: &BTreeMap<String, u64>) {
        let mut known = self.wanted.lock().expect("no holder panics");
        known.extend([ANY, GPU].map(|kind| (kind.to_owned(), 0)));
        known.values_mut().for_each(|count| *count = 0);
        known.extend(wanted.iter().map(|(kind, count)| (kind.clone(), *count)));
        for (kind, count) in &*known {
            self.processes_wanted.get_or_create(&[(REQUIRES, kind.clone())]).set(*count as i64);
        }
    }

    /// Sets how many jobs have no process, by reason.
    pub fn wait(&self, reasons: &[&WaitsFor]) {
        for word in WaitsFor::WORDS {
            let count = reasons.iter().filter(|reason| reason.word() == word).count();
            self.jobs_waiting.get_or_create(&[(REASON, word)]).set(count as i64);
        }
    }

    /// Returns the number of jobs that no current worker can run. A target without workers counts, too: only time shows
    /// whether fitting workers are starting.
    pub fn blocked(&self) -> u64 {
        let of = |reason| self.jobs_waiting.get_or_create(&[(REASON, reason)]).get().max(0) as u64;
        of("worker") + of("fitting_worker") + of("able_worker")
    }

    /// Returns the number of dead letters, if the reducer observes the queue and its service reports the number.
    pub fn dead_letters(&self) -> Option<u64> {
        let letters =
            self.queue_messages.get(&[(DESTINATION, DEAD_LETTERS), (STATE, "visible")])?;
        Some(letters.get().max(0) as u64)
    }

    /// Returns how many mini-batches this process has ended.
    pub fn mini_batches_ended(&self) -> u64 {
        ["succeeded", "failed"]
            .map(|outcome| self.mini_batches.get_or_create(&[(OUTCOME, outcome)]).get())
            .iter()
            .sum()
    }

    /// Returns how many processes the open jobs could use, by their requirements.
    pub fn wanted(&self) -> BTreeMap<String, u64> {
        self.wanted.lock().expect("no holder panics").clone()
    }

    /// Records that the role has made progress.
    pub fn progressed(&self) {
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        self.last_progress.set(now.as_secs_f64());
    }

    /// Returns the metrics of a role. `system` is the OpenTelemetry name of the broker, and `build` the version and
    /// commit.
    fn registry(&self, role: Role, system: &'static str, build: &str) -> Registry {
        let mut root = Registry::default();
        // A gauge, because KEDA cannot read a page with a metric of type info.
        let builds: Family<[(&str, String); 2], Gauge> = Family::default();
        builds
            .get_or_create(&[("role", role.word().to_owned()), ("build", build.to_owned())])
            .set(1);
        root.register("gristmill_build_info", "Role and build of this process", builds);
        // Before the first event, each metric appears with all values of its labels.
        let _ =
            self.messages_sent.get_or_create(&[(DESTINATION, DEAD_LETTERS), (OPERATION, "send")]);
        let (consumed, sent) = match role {
            Role::Worker => (TASKS, RESULTS),
            Role::Reducer => (RESULTS, DEAD_LETTERS),
        };
        let _ = self
            .messages_consumed
            .get_or_create(&[(DESTINATION, consumed), (OPERATION, "receive")]);
        let _ = self.messages_sent.get_or_create(&[(DESTINATION, sent), (OPERATION, "send")]);
        let messaging = root.sub_registry_with_label(("messaging_system".into(), system.into()));
        let mut show = Registration(messaging);
        show.seconds("messaging_client_operation_duration", "Calls of a queue", &self.queue_calls);
        show.as_is("messaging_client_sent_messages", "Messages sent", &self.messages_sent);
        show.as_is(
            "messaging_client_consumed_messages",
            "Messages received",
            &self.messages_consumed,
        );
        if role == Role::Worker {
            show.seconds(
                "messaging_process_duration",
                "Attempts, from hand-over to end",
                &self.process_seconds,
            );
        } else {
            let dead_letters = "Messages in the queue of dead letters, approximately";
            show.as_is("gristmill_queue_messages", dead_letters, &self.queue_messages);
        }
        let mut show = Registration(&mut root);
        let jobs_open = "Jobs that this worker has (worker), or open jobs of the target (reducer)";
        show.as_is("gristmill_jobs_open", jobs_open, &self.jobs_open);
        let last_progress =
            "When an attempt was last announced (worker), or a result committed (reducer)";
        show.seconds("gristmill_last_progress_timestamp", last_progress, &self.last_progress);
        match role {
            Role::Worker => self.show_worker(&mut show),
            Role::Reducer => self.show_reducer(&mut show),
        }
        self.progressed();
        root
    }

    fn show_worker(&self, show: &mut Registration) {
        for outcome in ["succeeded", "failed"] {
            let _ = self.items.get_or_create(&[(OUTCOME, outcome)]);
        }
        for cause in WEARS {
            let _ = self.processes_replaced.get_or_create(&[(CAUSE, cause)]);
        }
        show.as_is("gristmill_attempts", "Attempts that were announced", &self.attempts);
        show.as_is("gristmill_items", "Items of attempts that were announced", &self.items);
        show.with_unit("gristmill_row", "Rows that were announced", Unit::Bytes, &self.row_bytes);
        show.as_is("gristmill_processes", "Python processes", &self.processes);
        let replaced = "Live Python processes that were replaced";
        show.as_is("gristmill_processes_replaced", replaced, &self.processes_replaced);
        for cause in ["age", "size", "disk"] {
            let _ = self.cache_evictions.get_or_create(&[(CAUSE, cause)]);
        }
        show.with_unit("gristmill_cache", "Caches of this machine", Unit::Bytes, &self.cache_bytes);
        let evictions = "Entries that were evicted from the caches";
        show.as_is("gristmill_cache_evictions", evictions, &self.cache_evictions);
        show.as_is(
            "gristmill_leases_held",
            "Deliveries that are held under a lease",
            &self.leases_held,
        );
        show.as_is(
            "gristmill_leases_lost",
            "Leases that ended before the work was announced",
            &self.leases_lost,
        );
    }

    fn show_reducer(&self, show: &mut Registration) {
        for outcome in ["succeeded", "failed"] {
            let _ = self.mini_batches.get_or_create(&[(OUTCOME, outcome)]);
        }
        for outcome in ["committed", "lost"] {
            let _ = self.commit_seconds.get_or_create(&[(OUTCOME, outcome)]);
        }
        for state in ["completed", "failed", "canceled"] {
            let _ = self.jobs_ended.get_or_create(&[(STATE, state)]);
        }
        show.as_is("gristmill_mini_batches", "Mini-batches that ended", &self.mini_batches);
        show.seconds(
            "gristmill_ledger_commit_duration",
            "Commits to ledgers",
            &self.commit_seconds,
        );
        show.with_unit("gristmill_ledger", "Committed to ledgers", Unit::Bytes, &self.ledger_bytes);
        let duplicates = "Attempts that were delivered again although they were committed";
        show.as_is("gristmill_duplicates_dropped", duplicates, &self.duplicates_dropped);
        show.as_is("gristmill_jobs_ended", "Jobs that ended", &self.jobs_ended);
        self.want(&BTreeMap::new());
        let wanted = "Processes that the open jobs of the target could use now";
        show.as_is("gristmill_processes_wanted", wanted, &self.processes_wanted);
        let unfinished = "Mini-batches of the open jobs of the target that have not ended";
        show.as_is("gristmill_mini_batches_unfinished", unfinished, &self.mini_batches_unfinished);
        self.wait(&[]);
        let waiting =
            "Open jobs of the target without a process, by the reason in the last schedule";
        show.as_is("gristmill_jobs_waiting", waiting, &self.jobs_waiting);
    }
}

/// A registry, in which clones of the metrics are registered. Clones share their values.
struct Registration<'a>(&'a mut Registry);

impl Registration<'_> {
    fn as_is(&mut self, name: &str, help: &str, metric: &(impl Metric + Clone)) {
        self.0.register(name, help, metric.clone());
    }

    fn seconds(&mut self, name: &str, help: &str, metric: &(impl Metric + Clone)) {
        self.with_unit(name, help, Unit::Seconds, metric);
    }

    fn with_unit(&mut self, name: &str, help: &str, unit: Unit, metric: &(impl Metric + Clone)) {
        self.0.register_with_unit(name, help, unit, metric.clone());
    }
}

/// The metrics of one role, for scrapes.
pub struct Scrape(Registry);

impl Scrape {
    /// Selects the metrics of a role. `system` is the OpenTelemetry name of the broker, and `build` the version and
    /// commit.
    pub fn of(role: Role, system: &'static str, build: &str) -> Self {
        Self(metrics().registry(role, system, build))
    }

    /// The content type of [`text`](Self::text).
    pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// Returns the current values.
    pub fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.0).expect("writing to a string cannot fail");
        text
    }
}

impl fmt::Debug for Scrape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Scrape").finish_non_exhaustive()
    }
}

/// One contribution to a shared gauge. Dropping it removes the contribution.
#[derive(Debug)]
pub struct GaugeContribution {
    gauge: Gauge,
    value: i64,
}

impl GaugeContribution {
    /// Creates a contribution of 0.
    pub fn of(gauge: &Gauge) -> Self {
        Self { gauge: gauge.clone(), value: 0 }
    }

    /// Sets this contribution.
    pub fn set(&mut self, value: usize) {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        self.gauge.inc_by(value - self.value);
        self.value = value;
    }
}

impl Drop for GaugeContribution {
    fn drop(&mut self) {
        self.gauge.dec_by(self.value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauge_is_the_sum_of_its_contributions() {
        let gauge = Gauge::default();
        let (mut first, mut second) =
            (GaugeContribution::of(&gauge), GaugeContribution::of(&gauge));
        first.set(5);
        second.set(3);
        first.set(1);
        assert_eq!(gauge.get(), 4);
        drop(second);
        assert_eq!(gauge.get(), 1);
    }

    #[test]
    fn every_series_of_a_role_exists_from_the_start() {
        for (role, series) in [
            (Role::Worker, "gristmill_items_total{outcome=\"failed\"} 0"),
            (Role::Worker, "gristmill_leases_lost_total 0"),
            (Role::Reducer, "gristmill_mini_batches_total{outcome=\"failed\"} 0"),
            (Role::Reducer, "gristmill_jobs_ended_total{state=\"canceled\"} 0"),
            (Role::Reducer, "gristmill_processes_wanted{requires=\"any\"} 0"),
            (Role::Reducer, "gristmill_jobs_waiting{reason=\"fitting_worker\"} 0"),
        ] {
            let text = Scrape::of(role, "sqlite", "0.1.0").text();
            assert!(text.contains(series), "{text}");
            assert!(text.ends_with("# EOF\n"), "{text}");
        }
    }
}
