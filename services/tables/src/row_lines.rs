//! Counts the lines at which the rows of a text begin.

/// The lines of the rows of text tables.
#[derive(Default)]
pub(crate) struct RowLines {
    /// Line at which each row begins, counted from 1; `None` if unknown.
    pub of_rows: Vec<Option<u64>>,
    /// Lines that begin before position `at` of the current text.
    before: Option<u64>,
    at: usize,
}

impl RowLines {
    /// Begins another text, before which its file has this many lines.
    pub fn begin(&mut self, lines_before: Option<u64>) {
        (self.before, self.at) = (lines_before, 0);
    }

    /// Adds the row that starts at a position in the text, behind those of the rows before it.
    pub fn add(&mut self, text: &[u8], start: usize) {
        let between = text.get(self.at..start).unwrap_or_default();
        self.before =
            self.before.map(|before| before + memchr::memchr_iter(b'\n', between).count() as u64);
        self.at = start.max(self.at);
        self.of_rows.push(self.before.map(|before| before + 1));
    }
}
