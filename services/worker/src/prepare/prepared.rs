//! The result of preparing a mini-batch.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{Descriptor, ErrorReport, ItemPath, Kept, Payload, TableForm, UnreadRecord, Work};
use tables::{AsItems, Warnings};

use super::remote::Downloads;
use crate::memory_files::MemoryFile;

/// The result of preparing a mini-batch.
#[derive(Debug)]
pub enum Preparation {
    /// A process can run it.
    Ready(Box<Prepared>),
    /// It has no items for `run()`.
    Empty(Box<Prepared>),
    /// It cannot be read.
    Failed(ErrorReport),
    /// It cannot be read because the disk of this node is full.
    NoRoom(ErrorReport),
    /// It cannot be read now, because a store does not answer or denies access, or the node has too few files.
    Unreachable(ErrorReport),
}

/// A mini-batch that is ready for a process.
#[derive(Debug)]
pub struct Prepared {
    /// Source of the argument of `run()`.
    pub payload: Arc<Payload>,
    /// The table, if it is one.
    pub file: Option<MemoryFile>,
    /// Files that were downloaded for it.
    pub downloads: Option<Arc<Downloads>>,
    /// Memory that it occupies.
    pub bytes: u64,
    /// Items in the argument of `run()`.
    pub passed: u64,
    /// Items of the mini-batch, including those that failed before `run()`.
    pub total: u64,
    /// Those, if they are records of a table.
    pub unread: Vec<UnreadRecord>,
    /// Warnings from reading it.
    pub warnings: Warnings,
    /// Warnings about values that only pandas changes.
    pub warnings_of_pandas: Warnings,
    /// What differs for a script whose items are the lines of JSON.
    pub as_items: Option<AsItems>,
    /// What an earlier round of the job has of it, with the rows.
    pub kept: Option<(Kept, Bytes)>,
}

impl Prepared {
    /// Takes the table out of it, if it is one, with its length in bytes.
    pub fn take_table(&mut self) -> Option<(MemoryFile, u64)> {
        match *self.payload {
            Payload::Table { bytes, .. } => Some((self.file.take()?, bytes)),
            _ => None,
        }
    }

    /// Returns it as a script gets it.
    pub fn given(self, takes: TableForm) -> Self {
        let Self { mut warnings, warnings_of_pandas, as_items, .. } = self;
        let (payload, passed, unread) = match (takes, as_items) {
            (TableForm::Items, Some(items)) => {
                warnings = items.warnings;
                let payload = match *self.payload {
                    Payload::Table { total, bytes, is_declared, .. } => {
                        Arc::new(Payload::Table { rows: items.rows, total, bytes, is_declared })
                    }
                    _ => self.payload,
                };
                (payload, items.rows, items.unread)
            }
            // Types that a file declares hold all of its numbers.
            (TableForm::Declared, _)
                if matches!(*self.payload, Payload::Table { is_declared: true, .. }) =>
            {
                (self.payload, self.passed, self.unread)
            }
            (TableForm::Frame | TableForm::Declared | TableForm::Items, _) => {
                warnings.extend(warnings_of_pandas);
                (self.payload, self.passed, self.unread)
            }
            (TableForm::Arrow, _) => (self.payload, self.passed, self.unread),
        };
        Self {
            payload,
            passed,
            unread,
            warnings,
            warnings_of_pandas: Warnings::default(),
            as_items: None,
            ..self
        }
    }

    /// Creates a mini-batch of `total` items, all of which are in the argument of `run()`.
    pub fn new(payload: Payload, total: u64) -> Self {
        Self {
            payload: Arc::new(payload),
            file: None,
            downloads: None,
            bytes: 0,
            passed: total,
            total,
            unread: Vec::new(),
            warnings: Warnings::default(),
            warnings_of_pandas: Warnings::default(),
            as_items: None,
            kept: None,
        }
    }

    /// Returns the prepared mini-batch if preparing it takes neither time nor memory.
    pub fn without_reading(descriptor: &Descriptor) -> Option<Self> {
        match &descriptor.work {
            _ if descriptor.again.as_ref().is_some_and(|again| again.kept.is_some()) => None,
            Work::Files { paths, stamps, .. } if !paths.iter().any(ItemPath::is_url) => {
                let payload = Payload::Files { paths: paths.clone(), stamps: stamps.clone() };
                Some(Self::new(payload, paths.len() as u64))
            }
            Work::Rank => Some(Self::new(Payload::Rank, 1)),
            _ => None,
        }
    }

    /// Returns a mini-batch that could not be read. The descriptor tells its number of items; if unknown, it is one.
    pub fn unreadable(descriptor: &Descriptor) -> Self {
        let total = match &descriptor.work {
            Work::Files { paths, .. } => paths.len() as u64,
            Work::Rows { blocks, .. } => {
                blocks.iter().map(|block| block.range.rows().unwrap_or(0)).sum()
            }
            Work::Rank | Work::Planned { .. } => 1,
        };
        Self { passed: 0, ..Self::new(Payload::Rank, total.max(1)) }
    }
}
