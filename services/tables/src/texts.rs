//! Columns of texts under construction.

use std::sync::Arc;

use arrow::array::{LargeStringArray, NullBufferBuilder};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};

use crate::builder::{Builder, FinishedColumn};
use crate::error::Result;
use crate::missing::is_missing;
use crate::problem::Problem;
use crate::problems::Misfit;

/// `object` of `str` and `None`.
pub(crate) struct Texts {
    offsets: Vec<i64>,
    bytes: Vec<u8>,
    valid: NullBufferBuilder,
    missing: usize,
    empty_as_string: bool,
    /// Whether the words of pandas for a missing value are missing values.
    pub has_words: bool,
    /// Whether JSON values other than strings keep their kind.
    pub keeps_json: bool,
    /// Rows with a JSON value, ascending.
    json: Vec<usize>,
}

impl Texts {
    pub fn new(empty_as_string: bool) -> Self {
        Self {
            offsets: vec![0],
            bytes: Vec::new(),
            valid: NullBufferBuilder::new(0),
            missing: 0,
            empty_as_string,
            has_words: false,
            keeps_json: false,
            json: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    pub fn is_all_missing(&self) -> bool {
        self.missing == self.len()
    }

    /// Appends a value unchanged, even if it is empty.
    pub fn take_text(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.offsets.push(self.bytes.len() as i64);
        self.valid.append_non_null();
    }

    /// Appends a JSON value in its written form.
    pub fn take_json(&mut self, json: &[u8]) {
        self.json.push(self.offsets.len() - 1);
        self.take_text(json);
    }

    pub fn finish(mut self) -> Result<FinishedColumn> {
        let is_json = !self.json.is_empty();
        if is_json {
            self.write_texts_as_json();
        }
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.offsets));
        let array =
            LargeStringArray::try_new(offsets, Buffer::from(self.bytes), self.valid.finish())?;
        Ok(FinishedColumn { array: Arc::new(array), is_json })
    }

    /// Converts all values of the column to JSON.
    fn write_texts_as_json(&mut self) {
        let texts = std::mem::take(&mut self.bytes);
        let mut json = self.json.iter().copied().peekable();
        let mut start = 0;
        for row in 0..self.offsets.len() - 1 {
            let end = self.offsets[row + 1] as usize;
            let text = &texts[start..end];
            start = end;
            if json.next_if_eq(&row).is_some() {
                self.bytes.extend_from_slice(text);
            } else if self.valid.is_valid(row) {
                let text = std::str::from_utf8(text).expect("lines are decoded");
                serde_json::to_writer(&mut self.bytes, text).expect("memory takes everything");
            }
            self.offsets[row + 1] = self.bytes.len() as i64;
        }
    }
}

impl Builder for Texts {
    #[inline]
    fn take_quickly(&mut self, text: &[u8], start: usize, end: usize) -> bool {
        match text.get(start..end) {
            None | Some([] | [b'"', ..]) => false,
            Some(cell) if self.has_words && is_missing(cell) => false,
            Some(cell) => {
                self.take_text(cell);
                true
            }
        }
    }

    fn take(&mut self, cell: &[u8]) -> std::result::Result<(), Misfit> {
        if cell.is_empty() && !self.empty_as_string {
            self.take_missing()
        } else {
            self.take_text(cell)
        }
        Ok(())
    }

    fn take_missing(&mut self) {
        self.offsets.push(self.bytes.len() as i64);
        self.valid.append_null();
        self.missing += 1;
    }

    fn problem(&self) -> Option<Problem> {
        None
    }

    fn reserve(&mut self, values: usize, bytes: usize) {
        self.offsets.reserve(values);
        self.bytes.reserve(bytes);
    }
}
