//! Parses delimited text into columns.

use crate::builder::Builder;
use crate::column::Column;
use crate::line_ends::{LineEnds, has_lone_cr};
use crate::missing::is_missing;
use crate::problem::Problem;
use crate::problems::{Misfit, Origin, Problems, Replacement};
use crate::row_lines::RowLines;
use crate::scalar::trim;
use crate::split::{Ragged, Rows, Splitter, unquote};
use crate::texts::Texts;

/// The columns of one mini-batch under construction.
pub(crate) struct Table {
    /// Names of the columns in the file.
    pub names: Vec<String>,
    /// Positions in `names` of the columns to read, in the order of the table.
    pub selected: Vec<usize>,
    /// Number of cells in a row of the current file.
    pub width: usize,
    /// Position of each column to read in a row of the current file; `None` if the file lacks the column.
    pub places: Vec<Option<usize>>,
    /// Whether the words of pandas for a missing value are missing values, and white space is not.
    pub has_words: bool,
    /// Whether the job lists its columns, so that all others are irrelevant.
    pub is_selection: bool,
    /// The columns to read, in the order of `selected`.
    pub columns: Vec<Column>,
    /// Number of rows in each column.
    pub rows: usize,
    /// Problems in the rows.
    pub problems: Problems,
    /// The JSON lines of the rows, if requested.
    pub texts: Option<Texts>,
    /// The line numbers of the rows, if requested.
    pub line_numbers: Option<RowLines>,
}

impl Table {
    /// Assigns the cells of the following rows to columns by the header of their own file.
    pub fn read_as(&mut self, header: &[String]) {
        self.width = header.len();
        let place = |&index: &usize| header.iter().position(|name| *name == self.names[index]);
        self.places = self.selected.iter().map(place).collect();
    }

    /// Appends the rows of the text of `origin`, from `from` on. The block has `behind` bytes after the text.
    pub fn append_delimited(
        &mut self,
        splitter: Splitter,
        from: usize,
        behind: u64,
        rows: &mut Rows,
        origin: &mut Origin,
    ) {
        let text = origin.text.as_slice();
        let has_lone_cr = has_lone_cr(text);
        let mut at = from;
        let mut is_sized = false;
        while at < text.len() {
            let start = at;
            at = splitter.split(text, at, self.width, usize::MAX, rows);
            self.report_ragged(rows, origin);
            if has_lone_cr {
                self.report_lone_cr(splitter, rows, at, origin);
            }
            if !is_sized && (at < text.len() || behind > 0) {
                // Estimates the number of rows from the first ones, with a small reserve.
                let share =
                    ((text.len() - start) as f64 + behind as f64) / (at - start) as f64 * 1.05;
                self.reserve(rows, share);
                is_sized = true;
            }
            for ((&index, place_in_row), column) in
                self.selected.iter().zip(&self.places).zip(&mut self.columns)
            {
                let Some(cell) = *place_in_row else {
                    (0..rows.count).for_each(|_| column.builder().take_missing());
                    continue;
                };
                let (has_words, first_row) = (self.has_words, self.rows);
                let mut cells = Cells {
                    text,
                    rows,
                    index: cell,
                    has_words,
                    first_row,
                    origin,
                    problems: &mut self.problems,
                };
                let name = &self.names[index];
                match column {
                    Column::Integer(values) => cells.take(values, name),
                    Column::Unsigned(values) => cells.take(values, name),
                    Column::Float(values) => cells.take(values, name),
                    Column::Boolean(values) => cells.take(values, name),
                    Column::DateTime(values) => cells.take(values, name),
                    Column::Text(values) | Column::Blank(values) => {
                        cells.take(values, name);
                        if origin.text.replaced {
                            report_replaced(text, rows, cell, name, origin, &mut self.problems);
                        }
                    }
                }
            }
            if let Some(numbers) = &mut self.line_numbers {
                rows.cells(0).for_each(|(start, _)| numbers.add(text, start));
            }
            self.rows += rows.count;
            if rows.unterminated {
                let (problem, last) = (Problem::OpenQuote, self.rows.checked_sub(1));
                // People find the quote by the row that opens it, not by the end of the file.
                let start = rows.starts().last().unwrap_or(at);
                let defect = "the file ends within a quoted cell of the row that begins here";
                self.problems.defect(problem, (&mut *origin, start), last, None, defect);
            }
        }
    }

    fn reserve(&mut self, rows: &Rows, share: f64) {
        let more = |seen: usize| (seen as f64 * share) as usize;
        for (place, column) in self.places.iter().zip(&mut self.columns) {
            let bytes = match (&*column, place) {
                (Column::Text(_), Some(cell)) => {
                    rows.cells(*cell).map(|(start, end)| end.saturating_sub(start)).sum()
                }
                _ => 0,
            };
            column.builder().reserve(more(rows.count), more(bytes));
        }
    }

    /// Reports the rows up to `end` that a CR outside quotes divides for other readers.
    fn report_lone_cr(&mut self, splitter: Splitter, rows: &Rows, end: usize, origin: &mut Origin) {
        let text = origin.text.as_slice();
        // Rows that are left out, and reported as such, may follow a row.
        for (start, end) in rows.starts().zip(rows.starts().skip(1).chain([end])) {
            if LineEnds::of(splitter, &text[start..end]).divide_first_row() {
                let defect = "the line holds a CR, where pandas begins another row";
                self.problems.defect(Problem::LoneCr, (&mut *origin, start), None, None, defect);
            }
        }
    }

    fn report_ragged(&mut self, rows: &Rows, origin: &mut Origin) {
        let columns = self.width;
        for ragged in &rows.ragged {
            let problem = match ragged.cells {
                _ if ragged.is_broken || ragged.is_rest => Problem::BrokenQuote,
                cells if cells < columns => Problem::FewCells,
                _ => Problem::ManyCells,
            };
            let plural = if ragged.cells == 1 { "" } else { "s" };
            let within = match ragged {
                Ragged { is_broken: true, .. } => "the line ends within quotes, with ",
                Ragged { is_rest: true, .. } => {
                    "the line closes quotes that another has opened, with "
                }
                _ => "",
            };
            let defect = format_args!(
                "{within}{} cell{plural} in a table of {columns} columns",
                ragged.cells
            );
            // If records fail, the row was already left out.
            self.problems.defect(problem, (&mut *origin, ragged.position), None, None, defect);
        }
    }
}

/// The cells of one column in a chunk of rows.
struct Cells<'a, 'p> {
    text: &'a [u8],
    rows: &'a Rows,
    index: usize,
    has_words: bool,
    first_row: usize,
    origin: &'a mut Origin<'p>,
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
            if self.has_words
                && is_missing(cell)
                && !(cell.is_empty() && values.problem().is_none())
            {
                values.take_missing();
                continue;
            }
            let is_blank = || !cell.is_empty() && trim(cell).is_empty();
            let taken = match values.problem().filter(|_| self.has_words && is_blank()) {
                Some(problem) => {
                    values.take_missing();
                    Err(Misfit { problem, became: Replacement::Missing })
                }
                None => values.take(cell),
            };
            if let Err(misfit) = taken {
                self.problems.misfit(self.origin, start, self.first_row + row, name, cell, misfit);
            }
        }
    }
}

fn report_replaced(
    text: &[u8],
    rows: &Rows,
    index: usize,
    name: &str,
    origin: &mut Origin,
    problems: &mut Problems,
) {
    for (start, end) in rows.cells(index) {
        let cell = text.get(start..end).unwrap_or_default();
        problems.replaced(Problem::InvalidBytes, origin, start, name, cell);
    }
}
