//! The largest mini-batch of a plan, for `gristmill plan`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};

use protocol::{Block, BlockRange, Descriptor, JobSpec, MiniBatchSize, Work};

/// The number of items of the largest mini-batch. A plan does not count the rows of text, so the largest text is read.
#[derive(Debug, Default)]
pub struct LargestMiniBatch {
    items: u64,
    /// Maximum number of rows of a mini-batch.
    rows_max: Option<u64>,
    /// Bytes and blocks of the largest text whose rows were not counted.
    text: Option<(u64, Vec<Block>)>,
    /// Whether a mini-batch has neither a number of items nor a size.
    is_unknown: bool,
}

impl LargestMiniBatch {
    /// Begins with no mini-batch.
    pub fn of(spec: &JobSpec) -> Self {
        let rows_max = match spec.mini_batch_size {
            MiniBatchSize::Rows(rows) if spec.partition_keys.is_empty() => Some(rows),
            _ => None,
        };
        Self { rows_max, ..Self::default() }
    }

    /// Adds a mini-batch.
    pub fn add(&mut self, descriptor: &Descriptor) {
        if let Some(items) = descriptor.items() {
            self.items = self.items.max(items);
        } else if let Work::Rows { blocks, .. } = &descriptor.work
            && let Some(bytes) = blocks.iter().map(bytes).sum::<Option<u64>>()
        {
            if self.text.as_ref().is_none_or(|(most, _)| *most < bytes) {
                self.text = Some((bytes, blocks.clone()));
            }
        } else {
            self.is_unknown = true;
        }
    }

    /// Returns the number of items, or an upper bound; `None` if unknown.
    pub fn items(&self) -> Option<u64> {
        if self.is_unknown {
            return self.rows_max;
        }
        let rows = self.text.as_ref().map_or(0, |(bytes, blocks)| {
            // If the text cannot be read now, its bytes are a bound: each row has at least one.
            let rows = blocks.iter().map(lines).sum::<Option<u64>>().unwrap_or(*bytes);
            rows.min(self.rows_max.unwrap_or(u64::MAX))
        });
        Some(self.items.max(rows))
    }
}

/// Returns the size of a range of text in bytes.
fn bytes(block: &Block) -> Option<u64> {
    match block.range {
        BlockRange::Lines { first, last } => {
            let end = last.saturating_add(1).min(block.version.as_ref()?.bytes);
            Some(end.saturating_sub(first))
        }
        BlockRange::Records { start, end } => Some(end.saturating_sub(start)),
        BlockRange::WholeText | BlockRange::RowGroup { .. } => None,
    }
}

/// Counts the lines of a range of a local file, a header included.
fn lines(block: &Block) -> Option<u64> {
    let BlockRange::Lines { first, last } = block.range else { return None };
    if block.path.is_url() {
        return None;
    }
    let mut file = File::open(block.path.as_path()).ok()?;
    let end = last.min(file.metadata().ok()?.len().saturating_sub(1));
    // A line starts after a line break.
    let start = first.saturating_sub(1);
    file.seek(SeekFrom::Start(start)).ok()?;
    let mut text = BufReader::new(file.take(end.saturating_sub(start)));
    let mut lines = u64::from(first == 0);
    loop {
        let piece = text.fill_buf().ok()?;
        if piece.is_empty() {
            return Some(lines);
        }
        lines += piece.iter().filter(|byte| **byte == b'\n').count() as u64;
        let read = piece.len();
        text.consume(read);
    }
}

#[cfg(test)]
mod tests {
    use protocol::FileVersion;

    use super::*;

    fn of_lines(path: &std::path::Path, first: u64, last: u64) -> Descriptor {
        let version = path.metadata().ok().map(|metadata| FileVersion::of_file(&metadata));
        let block = Block {
            path: path.into(),
            version,
            range: BlockRange::Lines { first, last },
            path_columns: vec![],
        };
        Descriptor::new(
            "job",
            0,
            Work::Rows { input: 0, blocks: vec![block], rows_before: None, key: vec![] },
        )
    }

    fn largest(spec: &JobSpec, descriptors: &[Descriptor]) -> Option<u64> {
        let mut largest = LargestMiniBatch::of(spec);
        descriptors.iter().for_each(|descriptor| largest.add(descriptor));
        largest.items()
    }

    #[test]
    fn rows_of_text_are_counted() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("rows.csv");
        std::fs::write(&path, "id\n0\n1\n2\n3\n4\n5\n6\n").expect("writable");
        let spec = JobSpec::example();
        assert_eq!(largest(&spec, &[of_lines(&path, 0, 1 << 20)]), Some(8));
        assert_eq!(
            largest(&spec, &[of_lines(&path, 0, 6), of_lines(&path, 7, 12)]),
            Some(3),
            "0 to 1 and the header"
        );
        assert_eq!(largest(&spec, &[of_lines(&path, 7, 1 << 20)]), Some(5), "2 to 6");
        let of_rows = JobSpec { mini_batch_size: MiniBatchSize::Rows(2), ..JobSpec::example() };
        assert_eq!(largest(&of_rows, &[of_lines(&path, 0, 1 << 20)]), Some(2));
    }

    #[test]
    fn text_elsewhere_is_not_read() {
        let mut remote = of_lines(std::path::Path::new("s3://bucket/rows.csv"), 0, 1 << 20);
        let spec = JobSpec::example();
        assert_eq!(largest(&spec, std::slice::from_ref(&remote)), None, "its size is unknown, too");
        if let Work::Rows { blocks, .. } = &mut remote.work {
            blocks[0].version = Some(FileVersion { bytes: 30, etag: None, modified: None });
        }
        assert_eq!(largest(&spec, &[remote]), Some(30));
        assert_eq!(largest(&spec, &[]), Some(0));
    }
}
