//! The rows of a mini-batch that an earlier round of a job has kept: an object below `parts/`,
//! which the worker reads before it runs the other items.

use serde::{Deserialize, Serialize};

use crate::is_default;

/// The items of a mini-batch that run again, and the rows of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The items that run, as the first one and the end, in order.
    pub ranges: Vec<(u64, u64)>,
    /// Number of other items that have a result.
    pub succeeded: u64,
    /// Column names of their rows, as [`Attempt::columns`](crate::Attempt::columns).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Vec<String>>,
    /// The first item of each piece of their rows, and its size, in the order of the rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<(u64, u64)>,
    /// Whether only these items count as items of the mini-batch: the others belong to another job.
    #[serde(default, skip_serializing_if = "is_default")]
    pub is_separate: bool,
}

/// The bytes of an object are not kept rows of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it does not hold the rows that an earlier round has kept")]
pub struct NotKept;

impl Kept {
    /// Returns the name of the object of a mini-batch below `parts/`. `round`: the id of the round.
    pub fn name(mini_batch: u64, round: &str) -> String {
        format!("{mini_batch:010}-kept-{round}")
    }

    /// Returns the number of items that run.
    pub fn items(&self) -> u64 {
        self.ranges
            .iter()
            .fold(0, |items: u64, (first, end)| items.saturating_add(end.saturating_sub(*first)))
    }

    /// Returns the content of the object: one line of JSON, and the rows.
    pub fn encode(&self, rows: &[u8]) -> Vec<u8> {
        let mut content = serde_json::to_vec(self).expect("plain data");
        content.push(b'\n');
        content.extend_from_slice(rows);
        content
    }

    /// Reads the content of the object. Returns the position of the rows as well.
    pub fn decode(content: &[u8]) -> Result<(Self, usize), NotKept> {
        let line = content.iter().position(|byte| *byte == b'\n').ok_or(NotKept)?;
        let kept: Self = serde_json::from_slice(&content[..line]).map_err(|_| NotKept)?;
        let rows = content.len() - line - 1;
        let size = kept.pieces.iter().try_fold(0u64, |sum, (_, bytes)| sum.checked_add(*bytes));
        let is_ordered = kept.ranges.iter().all(|(first, end)| first < end)
            && kept.ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        match size == Some(rows as u64) && is_ordered && !kept.ranges.is_empty() {
            true => Ok((kept, line + 1)),
            false => Err(NotKept),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Kept {
        let columns = Some(vec!["a".to_owned()]);
        Kept {
            ranges: vec![(1, 2), (4, 6)],
            succeeded: 3,
            columns,
            pieces: vec![(0, 2), (2, 4)],
            is_separate: false,
        }
    }

    #[test]
    fn rows_are_found_behind_the_line() {
        let content = kept().encode(b"0\n2\n3\n");
        let (read, rows) = Kept::decode(&content).expect("whole");
        assert_eq!((read, &content[rows..]), (kept(), &b"0\n2\n3\n"[..]));
        assert_eq!(kept().items(), 3);
    }

    #[test]
    fn truncated_or_disordered_object_is_rejected() {
        let content = kept().encode(b"0\n2\n3\n");
        for end in 0..content.len() {
            assert_eq!(Kept::decode(&content[..end]), Err(NotKept), "{end} bytes");
        }
        for ranges in [vec![], vec![(2, 2)], vec![(4, 6), (1, 2)]] {
            assert_eq!(Kept::decode(&Kept { ranges, ..kept() }.encode(b"0\n2\n3\n")), Err(NotKept));
        }
    }
}
