//! Delimited text into columns.

use crate::column::{Builder, Column};
use crate::problems::{Place, Problems};
use crate::split::{Rows, Splitter, unquote};

/// The columns of one mini-batch while its blocks are read.
pub(crate) struct Table {
    /// Names of the file's own columns.
    pub names: Vec<String>,
    /// Which of `names` are read, in the order of the table.
    pub selected: Vec<usize>,
    /// Whether the job lists them: what else the files hold is of no interest then.
    pub is_selection: bool,
    /// The columns that are read, in the order of `selected`.
    pub columns: Vec<Column>,
    /// Rows in each of them.
    pub rows: usize,
    /// What is wrong with them.
    pub problems: Problems,
}

impl Table {
    /// Appends the rows of the text of `place`, from `from` on. Behind it, `behind` bytes of the same kind follow.
    pub fn append_delimited(
        &mut self,
        splitter: Splitter,
        from: usize,
        behind: u64,
        rows: &mut Rows,
        place: &mut Place,
    ) {
        let text = place.text.as_slice();
        let mut at = from;
        let mut is_sized = false;
        while at < text.len() {
            let start = at;
            at = splitter.split(text, at, self.names.len(), usize::MAX, rows);
            self.report_ragged(rows, place);
            if !is_sized && (at < text.len() || behind > 0) {
                // The first rows tell how many there will be, a little more so that a guess just short costs nothing.
                let share = ((text.len() - start) as f64 + behind as f64) / (at - start) as f64 * 1.05;
                self.reserve(rows, share);
                is_sized = true;
            }
            for (&index, column) in self.selected.iter().zip(&mut self.columns) {
                let mut cells = Cells { text, rows, index, first_row: self.rows, place, problems: &mut self.problems };
                let name = &self.names[index];
                match column {
                    Column::Integer(values) => cells.take(values, name),
                    Column::Float(values) => cells.take(values, name),
                    Column::Boolean(values) => cells.take(values, name),
                    Column::DateTime(values) => cells.take(values, name),
                    Column::Text(values) | Column::Blank(values) => {
                        cells.take(values, name);
                        if place.text.replaced {
                            report_replaced(text, rows, index, name, place, &mut self.problems);
                        }
                    }
                }
            }
            self.rows += rows.count;
            if rows.unterminated {
                let mend = "the rest of the file was taken into its last cell";
                let last = self.rows.checked_sub(1);
                self.problems.defect(place, at, last, "the file ends within a quoted cell", mend);
            }
        }
    }

    fn reserve(&mut self, rows: &Rows, share: f64) {
        let more = |seen: usize| (seen as f64 * share) as usize;
        for (&index, column) in self.selected.iter().zip(&mut self.columns) {
            let bytes = match column {
                Column::Text(_) => rows.cells(index).map(|(start, end)| end.saturating_sub(start)).sum(),
                _ => 0,
            };
            column.builder().reserve(more(rows.count), more(bytes));
        }
    }

    fn report_ragged(&mut self, rows: &Rows, place: &mut Place) {
        let columns = self.names.len();
        for ragged in &rows.ragged {
            let mend = if ragged.cells < columns { "the others are missing" } else { "the others were dropped" };
            let plural = if ragged.cells == 1 { "" } else { "s" };
            let defect = format_args!("{} cell{plural} in a table of {columns} columns", ragged.cells);
            // Where records fail, the row was left out already.
            self.problems.defect(place, ragged.position, None, defect, mend);
        }
    }
}

/// The cells of one column in a chunk of rows.
struct Cells<'a, 'p> {
    text: &'a [u8],
    rows: &'a Rows,
    index: usize,
    first_row: usize,
    place: &'a mut Place<'p>,
    problems: &'a mut Problems,
}

impl Cells<'_, '_> {
    fn take<B: Builder>(&mut self, values: &mut B, name: &str) {
        let mut scratch = Vec::new();
        for (row, (start, end)) in self.rows.cells(self.index).enumerate() {
            if values.take_quickly(self.text, start, end) {
                continue;
            }
            if start > end {
                values.take_missing();
                continue;
            }
            let cell = unquote(&self.text[start..end], &mut scratch);
            if let Err(misfit) = values.take(cell) {
                self.problems.misfit(self.place, start, self.first_row + row, name, cell, misfit);
            }
        }
    }
}

fn report_replaced(text: &[u8], rows: &Rows, index: usize, name: &str, place: &mut Place, problems: &mut Problems) {
    for (start, end) in rows.cells(index) {
        let cell = text.get(start..end).unwrap_or_default();
        if memchr::memmem::find(cell, "\u{FFFD}".as_bytes()).is_some() {
            problems.replaced(place, start, name, cell);
        }
    }
}
