//! A list of attempts in pieces of equal length, which grows without copying.

use super::AttemptSummary;

const PIECE: usize = 1 << 16;

#[derive(Debug, Default)]
pub struct Attempts(Vec<Vec<AttemptSummary>>);

impl Attempts {
    pub fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * PIECE + last.len())
    }

    pub fn push(&mut self, attempt: AttemptSummary) {
        match self.0.last_mut() {
            // The first piece grows: most jobs are small.
            Some(last) if last.len() < PIECE => last.push(attempt),
            Some(_) => {
                let mut piece = Vec::with_capacity(PIECE);
                piece.push(attempt);
                self.0.push(piece);
            }
            None => self.0.push(vec![attempt]),
        }
    }

    pub fn get(&self, position: u32) -> &AttemptSummary {
        let position = position as usize;
        &self.0[position / PIECE][position % PIECE]
    }

    pub fn get_mut(&mut self, position: u32) -> &mut AttemptSummary {
        let position = position as usize;
        &mut self.0[position / PIECE][position % PIECE]
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &AttemptSummary> {
        self.0.iter().flatten()
    }
}
