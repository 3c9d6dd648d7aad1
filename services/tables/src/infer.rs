//! Infers names and types of the columns of text tables from some rows of an input: from the first rows by the rules of
//! the original, from rows at many places by those of pandas.
//!
//! The one idea: for each column, keep the set of types that all values so far can have; the narrowest remaining type
//! wins.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use protocol::{ColumnType, TableColumn, TableFormat, TableOptions, TableSchema, TypeRules};

use crate::WINDOW_ROWS;
use crate::charset::encoding_of;
use crate::datetime::{DayOrder, parse_instant};
use crate::error::{Error, Result, display};
use crate::headers::has_own_header;
use crate::jsonl::{Value, lines, members};
use crate::line_ends::refuse_cr_alone;
use crate::missing::is_missing;
use crate::scalar::{is_whole, parse_float, parse_integer, parse_truth, parse_unsigned, trim};
use crate::source::{Text, TextFile};
use crate::split::{FirstRow, Rows, Splitter, first_row, is_multi_line, splitter, unquote};
use crate::stream::{TextStream, Windows, record_ends};

/// Maximum number of places of an input whose rows decide the types by the rules of pandas.
pub const PLACES_MAX: u64 = 64;

/// Bytes read at a time.
const PIECE_BYTES: usize = 256 * 1024;
/// Bytes read at a time at one of many places.
const PLACE_BYTES: u64 = 16 * 1024;
/// Bytes read at a time to find only a header.
const HEADER_BYTES: usize = 16 * 1024;

/// Returns the columns that the header of a file names; a blank file has none.
pub(crate) fn header_of(
    file: &TextFile,
    options: &TableOptions,
    text: &mut Text,
) -> Result<Vec<String>> {
    Ok(column_names(cells_of_header(file, options, text)?))
}

/// Returns the cells of the header of a file, as they are written; a blank file has none.
pub(crate) fn cells_of_header(
    file: &TextFile,
    options: &TableOptions,
    text: &mut Text,
) -> Result<Vec<String>> {
    let mut stream = TextStream::open_table(file, options)?;
    let mut windows = Windows::new(&mut stream, record_ends(options), HEADER_BYTES, u64::MAX);
    while windows.next(text)? {
        if !text.is_blank(options.delimiter) {
            return Ok(first_row(splitter(options), text.as_slice()).cells);
        }
    }
    Ok(Vec::new())
}

/// Returns the column names in a header line, none of them empty or repeated.
pub(crate) fn column_names(cells: Vec<String>) -> Vec<String> {
    let mut taken: HashSet<String> =
        cells.iter().filter(|cell| !cell.trim().is_empty()).cloned().collect();
    let mut seen = HashSet::new();
    let mut names = Vec::with_capacity(cells.len());
    for (index, cell) in cells.into_iter().enumerate() {
        let is_empty = cell.trim().is_empty();
        let base = if is_empty { format!("Column{}", index + 1) } else { cell };
        let mut name = base.clone();
        let mut copy = 0;
        while seen.contains(&name) || (copy > 0 || is_empty) && taken.contains(&name) {
            copy += 1;
            name = format!("{base}.{copy}");
        }
        taken.insert(name.clone());
        seen.insert(name.clone());
        names.push(name);
    }
    names
}

/// Returns consecutive whole rows of a text that may begin within quotes: each has `columns` cells, and closes the
/// quotes that it opens. If the text has no quotes, one such row shows that all rows are whole, those with fewer cells
/// too. Returns an empty text if no such rows are found.
fn whole_rows(splitter: Splitter, text: &[u8], columns: usize) -> &[u8] {
    /// Maximum number of lines after which the rows may begin.
    const TRIES: usize = 64;
    let mut rows = Rows::default();
    if memchr::memchr(b'"', text).is_none() {
        let end = splitter.split(text, 0, columns, WINDOW_ROWS, &mut rows);
        return &text[..if rows.ragged.len() < rows.count { end } else { 0 }];
    }
    let mut start = 0;
    for _ in 0..TRIES {
        let end = splitter.split(text, start, columns, WINDOW_ROWS, &mut rows);
        let odd = rows
            .starts()
            .zip(rows.starts().skip(1).chain([end]))
            .find(|&(from, to)| memchr::memchr_iter(b'"', &text[from..to]).count() % 2 == 1);
        let odd = odd.map(|(from, _)| from);
        let Some(odd) =
            rows.ragged.first().map(|ragged| ragged.position).into_iter().chain(odd).min()
        else {
            return &text[start..end];
        };
        // The last row may continue after the text; the whole rows before it are enough.
        if end == text.len() && rows.starts().last() == Some(odd) && odd > start {
            return &text[start..odd];
        }
        let Some(length) = memchr::memchr(b'\n', &text[odd..]) else { break };
        start = odd + length + 1;
    }
    &[]
}

/// The error for a file whose first row has more cells than the input has `names`: for pandas, the first ones would be
/// an index.
fn too_few_names(path: &str, names: usize, cells: usize) -> Error {
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let message = format!(
        "has {cells} field{} in its first row, and `names` lists {names} name{}: name each field, and select some with \
         `columns`",
        plural(cells),
        plural(names)
    );
    Error::kind(path, message)
}

/// The inference of the columns of an input, file by file.
pub struct SchemaInference {
    options: TableOptions,
    /// Number of records read, and the number at which reading stops.
    window: usize,
    window_max: usize,
    /// Number of readable records among them.
    rows: usize,
    columns: Vec<(String, Candidates)>,
    has_columns: bool,
    /// Number of files begun.
    files: usize,
    /// Whether the header of the current file has not been read yet.
    awaits_header: bool,
    /// Number of cells in the first row of the current file.
    width: usize,
    /// Positions of the cells of the current file in `columns`.
    places: Vec<usize>,
    text: Text,
}

impl SchemaInference {
    /// Begins the inference for an input. Fails if the options contradict each other.
    pub fn new(options: &TableOptions) -> Result<Self> {
        encoding_of(options)?;
        if matches!(options.delimiter, b'"' | b'\n' | b'\r') {
            return Err(Error::Options("a delimiter cannot be a quote or a line break".to_owned()));
        }
        Ok(Self {
            options: options.clone(),
            window: 0,
            window_max: match options.types {
                TypeRules::Original => WINDOW_ROWS,
                // Each place has a window of its own.
                TypeRules::Pandas => 0,
            },
            rows: 0,
            columns: Vec::new(),
            has_columns: false,
            files: 0,
            awaits_header: false,
            width: 0,
            places: Vec::new(),
            text: Text::default(),
        })
    }

    /// Returns whether further files change nothing. Parquet files contain their types, so none is needed.
    pub fn is_complete(&self) -> bool {
        let may_change = self.options.types == TypeRules::Pandas || has_own_header(&self.options);
        !self.options.format.is_text() || self.has_rows() && !may_change
    }

    /// Returns whether the rows read so far are enough, for now.
    fn has_rows(&self) -> bool {
        self.window >= self.window_max || !self.options.format.is_text()
    }

    /// Returns whether a file had a row so far.
    pub fn found_rows(&self) -> bool {
        self.rows > 0
    }

    /// Returns the names of the columns so far.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|(name, _)| name.as_str())
    }

    /// Returns whether further files add no column.
    pub fn knows_names(&self) -> bool {
        self.has_columns && !has_own_header(&self.options) || self.is_complete()
    }

    /// Adds the next file of the input, which messages call `name`. Reads only as much as necessary: by the rules of
    /// pandas the rows at this many evenly spread places, or as many rows from the beginning of a text that must be
    /// read from there; without a place only a header.
    pub fn add_file(&mut self, path: &Path, name: &str, places: u64) -> Result<()> {
        if self.is_complete() {
            return Ok(());
        }
        let is_sample = self.options.types == TypeRules::Pandas;
        let places = if is_sample { places } else { 1 };
        self.awaits_header =
            self.options.format.is_delimited() && self.options.header.is_in(self.files == 0);
        self.files += 1;
        let file = TextFile::open(path, name, &self.options)?;
        let mut text = std::mem::take(&mut self.text);
        let added = match file.is_stream || places <= 1 {
            true => {
                self.window_max +=
                    if is_sample { WINDOW_ROWS.saturating_mul(places as usize) } else { 0 };
                self.add_records(&file, &mut text).map(|_| ())
            }
            false => self.add_places(&file, places, &mut text),
        };
        self.text = text;
        added
    }

    /// Adds the rows at several places of a file whose lines can be found from anywhere.
    fn add_places(&mut self, file: &TextFile, places: u64, text: &mut Text) -> Result<()> {
        let start =
            |place: u64| (u128::from(file.bytes) * u128::from(place) / u128::from(places)) as u64;
        let is_multi_line = is_multi_line(&self.options);
        let mut first = file.first_line;
        for place in 0..places {
            self.window_max = self.window + WINDOW_ROWS;
            if is_multi_line && place == 0 {
                first = self.add_records(file, text)?;
                continue;
            }
            let (mut from, end) = (start(place).max(first), start(place + 1));
            while from < end && (!self.has_rows() || self.awaits_header) {
                let to = (end - 1).min(from + PLACE_BYTES - 1);
                file.read_lines(from, to, text)?;
                if is_multi_line {
                    let rows = whole_rows(splitter(&self.options), text.as_slice(), self.width);
                    self.add_text(file, rows, false)?;
                } else if !text.is_blank(self.options.delimiter) {
                    self.add_text(file, text.as_slice(), (from..=to).contains(&file.first_line))?;
                }
                from = to + 1;
            }
        }
        Ok(())
    }

    /// Adds the first rows of a file. Returns the position after them, or a later one.
    fn add_records(&mut self, file: &TextFile, text: &mut Text) -> Result<u64> {
        let mut stream = TextStream::open_table(file, &self.options)?;
        let mut windows =
            Windows::new(&mut stream, record_ends(&self.options), PIECE_BYTES, u64::MAX);
        let mut has_first_line = true;
        let needs_header = has_own_header(&self.options);
        let mut end = 0;
        while (!self.has_rows() || needs_header && self.awaits_header) && windows.next(text)? {
            if !text.is_blank(self.options.delimiter) {
                let added = self.add_text(file, text.as_slice(), has_first_line)?;
                end = text.offset + added as u64;
                has_first_line = false;
            }
        }
        Ok(end)
    }

    /// Adds whole rows of a file, as many as are wanted, and returns where they end. `has_first_line` says whether they
    /// include the first line of the file.
    fn add_text(&mut self, file: &TextFile, text: &[u8], has_first_line: bool) -> Result<usize> {
        if self.options.format == TableFormat::Jsonl {
            self.add_objects(text);
            return Ok(text.len());
        }
        let splitter = splitter(&self.options);
        let mut from = 0;
        if has_first_line {
            let FirstRow { cells, next, .. } = first_row(splitter, text);
            self.width = cells.len();
            refuse_cr_alone(&file.name, splitter, &text[..next])?;
            let is_header = std::mem::take(&mut self.awaits_header);
            if is_header {
                from = next;
            }
            if has_own_header(&self.options) {
                self.places =
                    column_names(cells).into_iter().map(|name| self.place_of(name)).collect();
            } else if !self.has_columns && !cells.is_empty() {
                let candidates = Candidates::new(&self.options);
                let given = &self.options.names;
                let names = match is_header {
                    true => cells,
                    false if given.is_empty() => vec![String::new(); cells.len()],
                    // Further names are columns without values, as for pandas.
                    false if given.len() >= cells.len() => given.clone(),
                    false => return Err(too_few_names(&file.name, given.len(), cells.len())),
                };
                self.columns = column_names(names)
                    .into_iter()
                    .map(|name| (name, candidates.clone()))
                    .collect();
                self.places = (0..self.columns.len()).collect();
            }
            self.has_columns = !self.columns.is_empty();
        }
        let mut rows = Rows::default();
        let mut scratch = Vec::new();
        while from < text.len() && !self.has_rows() {
            from = splitter.split(
                text,
                from,
                self.places.len(),
                self.window_max - self.window,
                &mut rows,
            );
            for (cell, place) in self.places.iter().enumerate() {
                let (_, candidates) = &mut self.columns[*place];
                for (start, end) in rows.cells(cell) {
                    candidates.see(unquote(text.get(start..end).unwrap_or_default(), &mut scratch));
                }
            }
            self.window += rows.count;
            self.rows += rows.count;
        }
        Ok(from)
    }

    /// Returns the position of a column, which it adds if it is new.
    fn place_of(&mut self, name: String) -> usize {
        self.columns.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
            self.columns.push((name, Candidates::new(&self.options)));
            self.columns.len() - 1
        })
    }

    fn add_objects(&mut self, text: &[u8]) {
        let mut indexes: HashMap<String, usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(index, (name, _))| (name.clone(), index))
            .collect();
        for (_, line) in lines(text).take(self.window_max - self.window) {
            self.window += 1;
            let mut row = Vec::new();
            // An unreadable line has no types.
            if members(line, Some, |key, value| row.push((key, value))).is_err() {
                continue;
            }
            // The last value of a repeated key counts.
            let mut last = HashMap::with_capacity(row.len());
            for (key, value) in row {
                let index = *indexes.entry(key.into_owned()).or_insert_with_key(|key| {
                    self.columns.push((key.clone(), Candidates::new(&self.options)));
                    self.columns.len() - 1
                });
                last.insert(index, value);
            }
            for (index, value) in last {
                self.columns[index].1.see_json(&value);
            }
            self.rows += 1;
        }
    }

    /// Returns the schema, with `path_columns` as last columns; `None` for Parquet, whose files contain their types.
    pub fn finish(self, path_columns: &[String]) -> Option<TableSchema> {
        if !self.options.format.is_text() {
            return None;
        }
        let Self { options, mut columns, rows, .. } = self;
        if columns.is_empty() {
            columns
                .extend(options.names.iter().map(|name| (name.clone(), Candidates::new(&options))));
        }
        let mut given = options.column_types;
        let mut own: Vec<TableColumn> = Vec::with_capacity(columns.len());
        own.extend(columns.into_iter().map(|(name, candidates)| {
            let asked = given.remove(&name);
            let is_known =
                options.infer_column_types && (rows > 0 || options.types == TypeRules::Original);
            let found = if is_known { candidates.decide(rows) } else { ColumnType::Text };
            let column_type = asked.unwrap_or(found);
            let is_pandas = options.types == TypeRules::Pandas;
            let is_whole = matches!(column_type, ColumnType::Integer | ColumnType::Unsigned);
            TableColumn {
                name,
                column_type,
                has_missing: is_pandas && is_whole && candidates.filled < rows,
                has_offset: is_pandas && candidates.has_offset,
                doubtful: match column_type {
                    _ if asked.is_some() => None,
                    ColumnType::Boolean => candidates.code,
                    ColumnType::DateTimeMonthFirst if candidates.day_first => candidates.date,
                    _ => None,
                },
            }
        }));
        if options.format == TableFormat::Jsonl {
            // Only later lines may have these keys.
            own.extend(
                given.into_iter().map(|(name, column_type)| TableColumn::new(name, column_type)),
            );
        }
        own.extend(path_columns.iter().map(|name| TableColumn::new(name, ColumnType::Text)));
        Some(TableSchema { columns: own, is_empty: rows == 0 })
    }
}

/// Infers the schema of local files, with `path_columns` as last columns; `None` for Parquet.
pub fn infer_schema<'a>(
    files: impl IntoIterator<Item = &'a Path>,
    options: &TableOptions,
    path_columns: &[String],
) -> Result<Option<TableSchema>> {
    let mut inference = SchemaInference::new(options)?;
    for path in files {
        if inference.is_complete() {
            break;
        }
        inference.add_file(path, &display(path), PLACES_MAX)?;
    }
    Ok(inference.finish(path_columns))
}

/// The types that all values of a column so far can have.
#[derive(Clone, Debug)]
struct Candidates {
    types: TypeRules,
    /// Whether white space is a value, and the words of pandas are missing values.
    has_words: bool,
    /// Number of values that are not missing.
    filled: usize,
    /// `0` and `1`; `true` and `false`; `T` and `F`; `Y` and `N`. A column uses one notation.
    booleans: [bool; 4],
    /// The first value, if all are codes and not words.
    code: Option<String>,
    /// A date that means another day if the day comes first.
    date: Option<String>,
    integer: bool,
    unsigned: bool,
    /// Whole numbers of any size.
    whole: bool,
    float: bool,
    month_first: bool,
    day_first: bool,
    /// Whether any time has an offset.
    has_offset: bool,
    /// The kind of JSON values.
    json: Option<JsonKind>,
}

/// The kind of all values in a column of JSON lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JsonKind {
    Number,
    Boolean,
    Text,
    /// Objects, arrays, or values of several kinds.
    Mixed,
}

/// Position of `true` and `false` among the notations.
const WORDS: usize = 1;

impl Candidates {
    fn new(options: &TableOptions) -> Self {
        Self {
            types: options.types,
            has_words: options.has_missing_words(),
            filled: 0,
            booleans: [true; 4],
            code: None,
            date: None,
            integer: true,
            unsigned: true,
            whole: true,
            float: true,
            month_first: true,
            day_first: true,
            has_offset: false,
            json: None,
        }
    }

    fn see(&mut self, text: &[u8]) {
        let cell = match self.has_words {
            true if is_missing(text) => return,
            // White space alone is a text.
            true if trim(text).is_empty() => text,
            _ => trim(text),
        };
        if cell.is_empty() {
            return;
        }
        self.filled += 1;
        let notation = match cell {
            // pandas trims numbers, but not truth values.
            _ if self.types == TypeRules::Pandas => parse_truth(text).map(|_| WORDS),
            b"0" | b"1" => Some(0),
            b"T" | b"F" => Some(2),
            b"Y" | b"N" => Some(3),
            _ if cell.eq_ignore_ascii_case(b"true") || cell.eq_ignore_ascii_case(b"false") => {
                Some(WORDS)
            }
            _ => None,
        };
        for (index, is_possible) in self.booleans.iter_mut().enumerate() {
            *is_possible &= notation == Some(index);
        }
        if self.code.is_none() && notation.is_some_and(|notation| notation != WORDS) {
            self.code = Some(String::from_utf8_lossy(cell).into_owned());
        }
        self.integer = self.integer && parse_integer(cell).is_some();
        self.unsigned = self.unsigned && parse_unsigned(cell).is_some();
        self.whole = self.whole && is_whole(cell);
        self.float = self.float
            && parse_float(cell).is_some_and(|value| !(self.has_words && value.is_nan()));
        self.see_instant(cell);
    }

    fn see_instant(&mut self, cell: &[u8]) {
        let [month_first, day_first] =
            [DayOrder::MonthFirst, DayOrder::DayFirst].map(|order| parse_instant(cell, order));
        self.month_first &= month_first.is_some();
        self.day_first &= day_first.is_some();
        if self.date.is_none() && self.month_first && month_first != day_first {
            self.date = Some(String::from_utf8_lossy(cell).into_owned());
        }
        self.has_offset |=
            month_first.or(day_first).is_some_and(|instant| instant.offset.is_some());
    }

    /// Takes a JSON value into account. JSON distinguishes numbers from text; values of several kinds stay unchanged.
    fn see_json(&mut self, value: &Value) {
        let kind = match value {
            Value::Missing => return,
            Value::Number(number) => {
                self.see(number);
                self.booleans = [false; 4];
                JsonKind::Number
            }
            Value::Boolean(value) => {
                self.see(if *value { b"true" } else { b"false" });
                JsonKind::Boolean
            }
            Value::Text(text) => {
                self.filled += 1;
                self.see_instant(trim(text.as_bytes()));
                JsonKind::Text
            }
            Value::Nested(_) => JsonKind::Mixed,
        };
        match self.json {
            None => self.json = Some(kind),
            Some(known) if known != kind => self.json = Some(JsonKind::Mixed),
            Some(_) => {}
        }
    }

    fn decide(&self, rows: usize) -> ColumnType {
        let is_full = self.filled == rows;
        match self {
            Self { json: Some(JsonKind::Mixed), .. } => ColumnType::Json,
            Self { json: Some(JsonKind::Text), .. } => ColumnType::Text,
            // Numbers may follow, and any other text is reported.
            _ if self.filled == 0 && self.has_words => ColumnType::Float,
            _ if self.filled == 0 => ColumnType::Blank,
            _ if self.booleans.contains(&true) => ColumnType::Boolean,
            Self { types: TypeRules::Pandas, .. } => self.decide_as_pandas(is_full),
            // A missing value turns whole numbers into floats; all are floats, so that all blocks have the same type.
            _ if self.integer && is_full => ColumnType::Integer,
            _ if self.float => ColumnType::Float,
            _ if self.month_first => ColumnType::DateTimeMonthFirst,
            _ if self.day_first => ColumnType::DateTimeDayFirst,
            _ => ColumnType::Text,
        }
    }

    fn decide_as_pandas(&self, is_full: bool) -> ColumnType {
        match self {
            _ if self.integer => ColumnType::Integer,
            _ if self.unsigned && (is_full || !self.has_words) => ColumnType::Unsigned,
            // Whole numbers beyond 64 bits: pandas keeps them as texts, and JSON has them as they are.
            _ if self.whole && self.json.is_some() => ColumnType::Json,
            _ if self.whole => ColumnType::Text,
            _ if self.float => ColumnType::Float,
            _ => ColumnType::Text,
        }
    }
}
