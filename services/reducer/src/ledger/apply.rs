//! What the events of the ledger change in the index of rows.

use std::ops::Range;

use protocol::ResultEvent;

use super::Index;
use crate::batch::{Event, RecordView};
use crate::tally::Effect;

impl Index {
    /// Applies an event that changed the tally. `rows`: range of inline rows in the segment.
    pub fn apply(&mut self, record: RecordView<'_>, effect: Effect, segment: u32, rows: Range<usize>) {
        match record.event {
            Event::Success(success) => {
                let columns = success.columns.map(|position| record.columns(position));
                self.insert(success.mini_batch, record.rows(success), columns, segment, rows);
            }
            Event::Other(event) => match &**event {
                ResultEvent::Attempt(attempt) if effect == Effect::Won => {
                    if attempt.extra_runs > 0 || !attempt.pieces.is_empty() {
                        self.join(attempt.mini_batch, &attempt.pieces);
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
