//! The results of the ranges of an isolated mini-batch that have succeeded. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use protocol::{Ending, Kept, Rejected};

/// The results, in the order of the items.
#[derive(Default)]
pub(super) struct SuccessfulRows {
    pub(super) ranges: u32,
    pub(super) returned: u64,
    pub(super) items_kept: u64,
    pub(super) columns: Option<Vec<String>>,
    pub(super) has_other_columns: bool,
    pub(super) has_checkpoints: bool,
    /// By the first item.
    rows: BTreeMap<u64, Bytes>,
    /// The first item of each piece of these rows, and its size.
    pieces: Vec<(u64, u64)>,
    /// Whether failed items lie within a piece.
    is_undivided: bool,
}

impl SuccessfulRows {
    /// Begins with the results that an earlier round has kept.
    pub(super) fn kept(kept: Kept, mut rows: Bytes) -> Self {
        let mut good = Self { columns: kept.columns, returned: kept.succeeded, ..Self::default() };
        good.ranges = u32::from(kept.succeeded > 0);
        for (item, bytes) in &kept.pieces {
            let piece =
                rows.split_to(usize::try_from(*bytes).unwrap_or(usize::MAX).min(rows.len()));
            good.add_rows(*item, piece);
        }
        good.pieces = kept.pieces;
        good
    }

    fn add_rows(&mut self, item: u64, rows: Bytes) {
        if rows.is_empty() {
            return;
        }
        let known = self.rows.entry(item).or_default();
        *known = if known.is_empty() { rows } else { [&known[..], &rows].concat().into() };
    }

    /// Adds the results of a range.
    pub(super) fn add(&mut self, items: &Range<u64>, ending: &mut Ending, rows: Bytes) {
        self.ranges += 1;
        self.returned += ending.returned.min(items.end - items.start);
        self.items_kept += ending.items_kept.min(items.end - items.start);
        self.has_checkpoints |= ending.has_checkpoints;
        match &ending.pieces[..] {
            [] => {
                // The rows of this range cannot be divided.
                self.is_undivided |= !ending.failed_items.is_empty() && !rows.is_empty();
                self.pieces.push((items.start, rows.len() as u64));
            }
            divided => {
                let absolute =
                    divided.iter().map(|&(item, bytes)| (items.start.saturating_add(item), bytes));
                self.pieces.extend(absolute);
            }
        }
        self.add_rows(items.start, rows);
        match (&self.columns, ending.columns.take()) {
            (None, these) => self.columns = these,
            (Some(first), Some(these)) => self.has_other_columns |= *first != these,
            (Some(_), None) => {}
        }
    }

    /// Returns the rows of all ranges, and their pieces between rejected items.
    pub(super) fn into_rows(self, rejected: &[Rejected]) -> (Bytes, Vec<(u64, u64)>) {
        let rows: Vec<Bytes> = self.rows.into_values().collect();
        let rows = match <[Bytes; 1]>::try_from(rows) {
            Ok([rows]) => rows,
            Err(rows) => rows.concat().into(),
        };
        let mut pieces = if self.is_undivided { Vec::new() } else { self.pieces };
        pieces.sort_unstable_by_key(|(item, _)| *item);
        // Without a reject between them they are one piece.
        pieces.dedup_by(|next, last| {
            let before = |item| rejected.partition_point(|rejected| rejected.item < item);
            let joins = before(last.0) == before(next.0);
            if joins {
                last.1 += next.1;
            }
            joins
        });
        (rows, pieces)
    }
}
