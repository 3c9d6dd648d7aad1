//! Applies the events of the ledger to the index of rows.

use std::ops::Range;

use protocol::{RejectedPart, ResultEvent};

use super::{Index, PartFile, RowLocation};
use crate::batch::{Event, RecordView};
use crate::tally::Effect;

impl Index {
    /// Returns the parts that the output or a retry needs: mini-batch, name and size of each.
    pub fn parts(&self) -> impl Iterator<Item = (u64, &str, u64)> {
        let of_rows = self.rows().filter_map(|(mini_batch, rows)| match rows {
            RowLocation::Part(position) => Some((mini_batch, self.part(position))),
            RowLocation::None | RowLocation::Inline { .. } => None,
        });
        let of_rejected = self.rejected.iter().map(|(mini_batch, part)| (*mini_batch, part));
        of_rows.chain(of_rejected).map(|(mini_batch, part)| (mini_batch, &*part.name, part.bytes))
    }

    /// Applies an event that changed the tally. `rows`: range of inline rows in the segment.
    pub fn apply(
        &mut self,
        record: RecordView<'_>,
        effect: Effect,
        segment: u32,
        rows: Range<usize>,
    ) {
        match record.event {
            Event::Success(success) => {
                let columns = success.columns.map(|position| record.columns(position));
                self.insert(success.mini_batch, record.rows(success), columns, segment, rows);
            }
            Event::Other(event) => match &**event {
                ResultEvent::Attempt(attempt) if effect == Effect::Won => {
                    if attempt.round > 0 {
                        // Those of an earlier round.
                        self.remove(attempt.mini_batch);
                    }
                    let part = attempt.rejected_part.as_deref();
                    if attempt.round > 0
                        || attempt.extra_runs > 0
                        || !attempt.pieces.is_empty()
                        || part.is_some()
                    {
                        self.join(attempt.mini_batch);
                    }
                    if let Some(RejectedPart { name, bytes, .. }) = part {
                        let part = PartFile { name: name.as_str().into(), bytes: *bytes };
                        self.rejected.insert(attempt.mini_batch, part);
                    }
                    let attempt = attempt.core();
                    self.insert(attempt.mini_batch, attempt.rows, attempt.columns, segment, rows);
                }
                ResultEvent::Planned(planned) => self.expect(planned.mini_batches),
                ResultEvent::RowsLost { mini_batches } => {
                    mini_batches.iter().for_each(|&mini_batch| self.remove(mini_batch));
                }
                _ => {}
            },
        }
    }
}
