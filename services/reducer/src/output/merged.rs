//! The rows of a replay at the places where they belong: between those of the job whose rejected items ran again.
//!
//! Each job of the chain, from the first to this one, is a layer. The plan of a replay says to which mini-batch of the
//! first job its items belong, and the ledger divides the rows of an isolated mini-batch into pieces by item. No item
//! succeeds in two layers, so the order of items is the order of rows. Nothing in the earlier jobs changes.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::iter::Peekable;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use protocol::{Descriptor, JobSpec, Replayed, is_job_id};
use storage::JobStore;
use tokio::runtime::Handle;

use super::InOrder;
use super::source::Source;
use crate::Tally;
use crate::ledger::{Index, Ledger, RowsAt};
use crate::rejects::read_list;
use crate::tally::Effect;

/// Segments that are read concurrently.
const SEGMENTS_AHEAD: usize = 4;
/// Jobs of one chain; more would be a circle.
const CHAIN_MAX: usize = 1000;

/// The earlier jobs of a replay, and the places of its own mini-batches.
#[derive(Debug)]
pub(crate) struct Bases {
    /// The first job, and then each replay of the one before.
    earlier: Vec<Base>,
    places: Vec<Replayed>,
}

/// An earlier job.
#[derive(Debug)]
struct Base {
    job_id: String,
    store: JobStore,
    index: Arc<Index>,
    /// The places of its mini-batches in those of the first job; empty for the first job.
    places: Vec<Replayed>,
}

impl Bases {
    /// Reads the jobs before a replay. Changes nothing in the store.
    pub async fn read(store: &JobStore, spec: &JobSpec) -> anyhow::Result<Self> {
        let mut earlier = Vec::new();
        let mut next = spec.replays.clone();
        let mut planned_at = spec.replays_run;
        while let Some(job_id) = next {
            ensure!(is_job_id(&job_id) && earlier.len() < CHAIN_MAX, "{job_id:?} is not the id of an earlier job");
            let store = store.sibling(&job_id)?;
            let spec = match store.spec().await {
                Err(storage::Error::NotFound { .. }) => {
                    bail!("job {job_id}, whose rows belong in this output, has been removed")
                }
                spec => spec.with_context(|| format!("read job {job_id}"))?,
            };
            let (index, run) = read_index(&store, &job_id).await.with_context(|| format!("read job {job_id}"))?;
            ensure!(
                planned_at.is_none_or(|planned| planned == run),
                "job {job_id} has run again since this replay of it was planned, so other items are rejected now"
            );
            planned_at = spec.replays_run;
            let places = if spec.replays.is_some() { places(&store, &job_id).await? } else { Vec::new() };
            earlier.push(Base { job_id, store, index, places });
            next = spec.replays;
        }
        earlier.reverse();
        let places = if earlier.is_empty() { Vec::new() } else { places(store, &spec.job_id).await? };
        Ok(Self { earlier, places })
    }

    /// Returns the first job whose rows have been removed, as of a job that completed without rejects.
    async fn incomplete(&self) -> anyhow::Result<Option<&str>> {
        for Base { job_id, store, index, .. } in &self.earlier {
            if !store.lost_parts(index.parts()).await?.is_empty() {
                return Ok(Some(job_id));
            }
        }
        Ok(None)
    }
}

/// Returns the job whose rows have been removed, so that a replay of `job_id` cannot write the whole output. Fails if a
/// whole job has been removed. `store`: that of the job.
pub async fn job_without_rows(store: &JobStore, job_id: &str) -> anyhow::Result<Option<String>> {
    let mut bases = Bases { earlier: Vec::new(), places: Vec::new() };
    let mut wanted = Some(job_id.to_owned());
    while let Some(job_id) = wanted.filter(|_| bases.earlier.len() < CHAIN_MAX) {
        let removed = || format!("job {job_id}, whose rows belong in the output, has been removed or cannot be read");
        // The folder of a removed job does not exist.
        let Ok(store) = store.sibling(&job_id) else { bail!(removed()) };
        let Ok(spec) = store.spec().await else { bail!(removed()) };
        let (index, _) = read_index(&store, &job_id).await.with_context(|| format!("read job {job_id}"))?;
        bases.earlier.push(Base { job_id, store, index, places: Vec::new() });
        wanted = spec.replays;
    }
    Ok(bases.incomplete().await?.map(str::to_owned))
}

/// Returns how often a job has been reopened, by its ledger. Changes nothing in the store.
pub async fn times_reopened(store: &JobStore, job_id: &str) -> anyhow::Result<u64> {
    Ok(read_index(store, job_id).await?.1)
}

/// Returns the rows of a job, and how often it has been reopened.
async fn read_index(store: &JobStore, job_id: &str) -> anyhow::Result<(Arc<Index>, u64)> {
    let mut tally = Tally::default();
    let mut ledger = Ledger::new(store.clone(), job_id, Duration::ZERO);
    while let Some(mut segment) = ledger.read_next(SEGMENTS_AHEAD).await? {
        let number = ledger.segments() - 1;
        let index = ledger.index_mut();
        segment.retain_in_segment(|record, place| {
            let effect = tally.apply_record(record);
            if effect != Effect::Nothing {
                index.apply(record, effect, number, place.rows());
            }
            false
        });
    }
    // As of a job that completed without rejects: none of its rows would be found.
    ensure!(ledger.segments() > 0, "the ledger of job {job_id} has been removed");
    Ok((ledger.index, tally.times_reopened()))
}

/// Returns the places of the mini-batches of a replay, from its plan.
async fn places(store: &JobStore, job_id: &str) -> anyhow::Result<Vec<Replayed>> {
    let plan = store.plan_complete().await.with_context(|| format!("read the plan of job {job_id}"))?;
    let plan = plan.with_context(|| format!("the plan of job {job_id} has been removed"))?;
    let mut places = Vec::new();
    for chunk in 0..plan.chunks() {
        let lines = store.plan_chunk(chunk).await.with_context(|| format!("read the plan of job {job_id}"))?;
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let descriptor: Descriptor = serde_json::from_slice(line).context("read the plan")?;
            places.push(descriptor.replays.with_context(|| format!("the plan of job {job_id} is no replay"))?);
        }
    }
    Ok(places)
}

/// A piece of the rows of a mini-batch of the first job.
#[derive(Clone, Copy, Debug)]
struct Span {
    mini_batch: u64,
    /// Its first item.
    item: u64,
    layer: usize,
    /// Mini-batch of the layer.
    own: u64,
    rows: RowsAt,
    /// Size; `None`: all rows of `own`.
    bytes: Option<u64>,
}

/// The rows of all layers in the order of the first job.
pub(super) struct Merged<'a> {
    layers: Vec<(&'a JobStore, &'a Index, &'a [Replayed])>,
    runtime: Handle,
}

impl<'a> Merged<'a> {
    /// Combines the earlier jobs of a replay with its own rows.
    pub fn new(bases: &'a Bases, store: &'a JobStore, index: &'a Index, runtime: Handle) -> Self {
        let earlier = bases.earlier.iter().map(|base| (&base.store, &*base.index, base.places.as_slice()));
        Self { layers: earlier.chain([(store, index, bases.places.as_slice())]).collect(), runtime }
    }

    /// Returns the place of a mini-batch of a layer in those of the first job.
    fn place(&self, layer: usize, own: u64) -> Option<(u64, u64)> {
        if layer == 0 {
            return Some((own, 0));
        }
        let place = self.layers[layer].2.get(usize::try_from(own).ok()?)?;
        Some((place.mini_batch, place.item))
    }

    /// Adds the pieces of a mini-batch of a layer.
    fn add(&self, layer: usize, own: u64, rows: RowsAt, spans: &mut Vec<Span>) -> anyhow::Result<()> {
        let (mini_batch, first) = self.place(layer, own).with_context(|| format!("mini-batch {own} has no place"))?;
        let pieces = self.pieces(layer, own)?;
        if pieces.is_empty() {
            let rows_from = self.layers[layer].2.get(own as usize).and_then(|place| place.rows);
            let item = first + rows_from.map_or(0, |(from, _)| from);
            spans.push(Span { mini_batch, item, layer, own, rows, bytes: None });
        }
        let sum = pieces.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        let size = self.layers[layer].1.size(rows);
        ensure!(pieces.is_empty() || sum == size, "the pieces of mini-batch {own} have {sum} bytes instead of {size}");
        for &(item, bytes) in &*pieces {
            spans.push(Span { mini_batch, item: first.saturating_add(item), layer, own, rows, bytes: Some(bytes) });
        }
        Ok(())
    }

    /// Returns the pieces of the rows of a mini-batch of a layer.
    fn pieces(&self, layer: usize, own: u64) -> anyhow::Result<Cow<'a, [(u64, u64)]>> {
        let (store, index, _) = self.layers[layer];
        match index.rejected(own) {
            Some(part) => Ok(self.runtime.block_on(read_list(store, &part.name, part.bytes))?.pieces.into()),
            None => Ok(index.pieces(own).into()),
        }
    }

    /// Returns the pieces that replays add, in order.
    fn added(&self) -> anyhow::Result<Vec<Span>> {
        let mut spans = Vec::new();
        for (layer, (_, index, _)) in self.layers.iter().enumerate().skip(1) {
            for (own, rows) in index.rows() {
                self.add(layer, own, rows, &mut spans)?;
            }
        }
        spans.sort_by_key(|span| (span.mini_batch, span.item));
        Ok(spans)
    }

    /// Returns the size of all rows.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(|(_, index, _)| index.rows_bytes()).sum()
    }

    /// Returns the column lists in the order of the first job, with its mini-batches.
    pub fn column_lists(&self) -> Vec<(u64, &'a [String])> {
        let mut lists = Vec::new();
        for (layer, (_, index, _)) in self.layers.iter().enumerate() {
            let placed = index.column_lists().filter_map(|(own, list)| Some((self.place(layer, own)?, list)));
            lists.extend(placed);
        }
        lists.sort_by_key(|(place, _)| *place);
        lists.into_iter().map(|((mini_batch, _), list)| (mini_batch, list)).collect()
    }
}

impl InOrder for Merged<'_> {
    fn for_each(&mut self, take: &mut dyn FnMut(u64, Box<dyn Read>, bool) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut sources: Vec<Source<'_>> =
            self.layers.iter().map(|(store, index, _)| Source::new(store, index, self.runtime.clone())).collect();
        let mut added = self.added()?.into_iter().peekable();
        let mut first = self.layers[0].1.rows().peekable();
        loop {
            let mini_batch = match (first.peek(), added.peek()) {
                (Some((own, _)), Some(span)) => (*own).min(span.mini_batch),
                (Some((own, _)), None) => *own,
                (None, Some(span)) => span.mini_batch,
                (None, None) => return Ok(()),
            };
            let mut spans = Vec::new();
            if let Some((own, rows)) = first.next_if(|(own, _)| *own == mini_batch) {
                self.add(0, own, rows, &mut spans)?;
            }
            while let Some(span) = next_of(&mut added, mini_batch) {
                spans.push(span);
            }
            spans.sort_by_key(|span| span.item);
            let reader = Spliced::open(&spans, &mut sources).with_context(|| super::rows_of(mini_batch))?;
            take(mini_batch, Box::new(reader), true)?;
        }
    }
}

fn next_of(spans: &mut Peekable<impl Iterator<Item = Span>>, mini_batch: u64) -> Option<Span> {
    spans.next_if(|span| span.mini_batch == mini_batch)
}

/// The rows of one mini-batch from several places, each of which is read from its beginning to its end.
struct Spliced {
    readers: Vec<Box<dyn Read>>,
    /// The reader of the next piece, and what is left of the piece; `None`: all that the reader has.
    pieces: VecDeque<(usize, Option<u64>)>,
}

impl Spliced {
    fn open(spans: &[Span], sources: &mut [Source<'_>]) -> anyhow::Result<Self> {
        let mut known: Vec<(usize, u64)> = Vec::new();
        let (mut readers, mut pieces) = (Vec::new(), VecDeque::new());
        for span in spans {
            let of = (span.layer, span.own);
            let reader = match known.iter().position(|other| *other == of) {
                Some(reader) => reader,
                None => {
                    known.push(of);
                    readers.push(sources[span.layer].reader(span.rows)?);
                    readers.len() - 1
                }
            };
            pieces.push_back((reader, span.bytes));
        }
        Ok(Self { readers, pieces })
    }
}

impl Read for Spliced {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while let Some((reader, left)) = self.pieces.front_mut() {
            let most = left.map_or(into.len(), |left| into.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
            let read = if most == 0 { 0 } else { self.readers[*reader].read(&mut into[..most])? };
            match left {
                Some(left) if read > 0 => *left -= read as u64,
                Some(1..) if most > 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
            if read > 0 || into.is_empty() {
                return Ok(read);
            }
            self.pieces.pop_front();
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spliced(readers: &[&'static str], pieces: &[(usize, Option<u64>)]) -> Spliced {
        let boxed = |text: &&'static str| -> Box<dyn Read> { Box::new(text.as_bytes()) };
        Spliced { readers: readers.iter().map(boxed).collect(), pieces: pieces.iter().copied().collect() }
    }

    #[test]
    fn pieces_are_read_in_turn() {
        let mut text = String::new();
        let mut rows = spliced(&["a\nb\nd\n", "c\n"], &[(0, Some(4)), (1, None), (0, Some(0)), (0, Some(2))]);
        rows.read_to_string(&mut text).expect("readable");
        assert_eq!(text, "a\nb\nc\nd\n");
    }

    #[test]
    fn piece_that_ends_early_is_an_error() {
        let mut rows = spliced(&["a\n"], &[(0, Some(3))]);
        assert!(rows.read_to_end(&mut Vec::new()).is_err());
    }
}
