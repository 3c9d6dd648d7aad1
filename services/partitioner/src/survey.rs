//! Surveys the files of a table input before a job begins: their format, and whether they can be read in it.
//!
//! A survey checks the names of all local files and of one page of objects, and the beginnings of as many of them as it
//! can read quickly. It is not the only check: the plan compares every name with the format of the input, and each
//! worker checks the first bytes and the header of every file that it opens.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use protocol::{Input, InputKind, ItemPath, JobSpec, TableFormat, TableOptions};
use serde::Serialize;
use storage::{LeftOut, StoreOptions};
use tables::detect::{self, Content, NamedFormat, NamedKind};

use crate::blocks::UNREADABLE;
use crate::error::{Error, Result};
use crate::glob;
use crate::inputs::{FILES_KEPT, Files, Inputs};
use crate::listing::Listed;
use crate::remote::Remote;

/// Bytes read from the beginning of a file.
const HEAD_BYTES: usize = 4096;
/// Local files whose beginnings are read, in a tenth of a second.
const LOCAL_HEADS_MAX: u64 = 10_000;
/// Local Parquet files whose columns are compared, in a tenth of a second.
const SHAPES_MAX: u64 = 1000;
/// Objects that a survey checks: those that the listing keeps.
const OBJECTS_MAX: u64 = FILES_KEPT as u64;

/// The result for one table input.
#[derive(Clone, Debug, Serialize)]
pub struct Survey {
    /// The format of its files.
    pub format: TableFormat,
    /// How the format was determined, for people.
    pub format_reason: &'static str,
    /// Number of files checked.
    pub files: u64,
    /// Total size of these files in bytes.
    pub bytes: u64,
    /// Number of empty files among them.
    pub empty_files: u64,
    /// Number of compressed files, by compression.
    pub compressed_files: BTreeMap<&'static str, u64>,
    /// Whether these are all files of the input.
    pub is_whole: bool,
    /// The encoding according to the byte order mark of the first file that is not empty.
    pub byte_order_mark: Option<&'static str>,
    /// Names among the files that are not part of the input.
    pub left_out: LeftOut,
    /// Possible surprises, each with the key that changes it.
    pub notes: Vec<String>,
}

impl Inputs {
    /// Returns the survey of each input of a job; `None` for those of type `file`, whose names may be any. Fails for an
    /// input that cannot be planned.
    pub fn survey(&self, spec: &JobSpec) -> Vec<Result<Option<Survey>>> {
        if spec.rank_mini_batch_count > 0 {
            return spec.inputs.iter().map(|_| Ok(None)).collect();
        }
        let survey = |input: &Input| match input.kind {
            InputKind::Tabular => {
                let survey =
                    Surveyor::new(input, Arc::clone(&self.remote)).run(self.files(spec, input))?;
                // Without a header, nothing names the columns of a table without rows.
                let knows_columns =
                    input.table.format == TableFormat::Jsonl || !input.table.names.is_empty();
                let may_be_empty = spec.run_without_rows && knows_columns || spec.inputs.len() > 1;
                if survey.is_whole && survey.empty_files == survey.files && !may_be_empty {
                    let message =
                        "all of its files are empty; put data there, or correct the job file";
                    return Err(Error::bad_input(&input.name, message));
                }
                Ok(Some(survey))
            }
            InputKind::File => self.files(spec, input).next().transpose().map(|_| None),
        };
        spec.inputs.iter().map(survey).collect()
    }
}

/// Surveys the inputs of a job, as [`Inputs::survey`] does.
pub fn survey(spec: &JobSpec, options: &StoreOptions) -> Vec<Result<Option<Survey>>> {
    Inputs::new(options).survey(spec)
}

/// Returns why a file cannot be part of an input whose format comes from the names of its files, if it cannot.
pub(crate) fn misnamed(path: &ItemPath, format: TableFormat) -> Option<String> {
    match detect::named(path.as_bytes()).kind {
        NamedKind::Table(named) if named == format => None,
        NamedKind::Table(named) => Some(format!(
            "is {} by its name, among files that are {}; {ONE_FORMAT}",
            named.word(),
            format.word()
        )),
        NamedKind::Other(what) => Some(detect::unread(what)),
        // Its content shows the format when it is read.
        NamedKind::Unknown if format == TableFormat::Parquet => None,
        NamedKind::Unknown => Some(format!(
            "has a name that does not show its format, among files that are {}; {ONE_FORMAT}",
            format.word()
        )),
    }
}

const SET_FORMAT: &str = "set `format` to csv, tsv, jsonl or parquet, or let the name end in .csv, .tsv, .jsonl, .parquet, …";
const ONE_FORMAT: &str =
    "name the files of one format with a pattern such as data/**/*.csv, or make an input of each";

/// Returns whether a local Parquet file lacks its end, which locates everything else.
fn is_cut_short(listed: &Listed) -> bool {
    let Some(size) = listed.size.filter(|_| !listed.path.is_url()) else { return false };
    let mut end = [0; 4];
    let read = File::open(listed.path.as_path())
        .and_then(|file| file.read_exact_at(&mut end, size.saturating_sub(4)));
    read.is_ok() && &end != b"PAR1"
}

/// Surveys one input.
struct Surveyor<'a> {
    input: &'a Input,
    remote: Arc<Remote>,
    heads: u64,
    /// Number of files, and the first of them.
    formats: BTreeMap<&'static str, (TableFormat, u64, ItemPath)>,
    /// Whether the content of a file without extension showed its format.
    by_content: bool,
    unknown: Option<ItemPath>,
    /// Number of files whose names indicate another format than the job file, and the first of them.
    misnamed: Option<(u64, ItemPath, &'static str)>,
    /// The first file, and the cells of its first line.
    header: Option<(ItemPath, Vec<String>)>,
    other_header: Option<(u64, ItemPath)>,
    /// The first Parquet file, with names and types of its columns.
    shape: Option<(ItemPath, Vec<(String, String)>)>,
    /// Number of Parquet files with other columns, the first of them, and a difference.
    other_shape: Option<(u64, ItemPath, String)>,
    /// Where the paths of the input begin.
    starts: Vec<PathBuf>,
    /// The folder of the last file, which has been checked.
    folder: PathBuf,
    /// By key: the number of files, the first of them, and the sentence.
    notes: BTreeMap<&'static str, (u64, ItemPath, String)>,
    files: u64,
    bytes: u64,
    empty_files: u64,
    compressed_files: BTreeMap<&'static str, u64>,
    byte_order_mark: Option<Option<&'static str>>,
}

impl<'a> Surveyor<'a> {
    fn new(input: &'a Input, remote: Arc<Remote>) -> Self {
        Self {
            input,
            remote,
            heads: 0,
            formats: BTreeMap::new(),
            by_content: false,
            unknown: None,
            misnamed: None,
            header: None,
            other_header: None,
            shape: None,
            other_shape: None,
            starts: input.paths.iter().map(glob::start_of).collect(),
            folder: PathBuf::new(),
            notes: BTreeMap::new(),
            files: 0,
            bytes: 0,
            empty_files: 0,
            compressed_files: BTreeMap::new(),
            byte_order_mark: None,
        }
    }

    fn run(mut self, mut files: Files) -> Result<Survey> {
        let mut objects = 0;
        let mut is_whole = true;
        for listed in files.by_ref() {
            let listed = listed?;
            objects += u64::from(listed.path.is_url());
            self.check(&listed)?;
            if objects >= OBJECTS_MAX {
                is_whole = false;
                break;
            }
        }
        let left_out = files.left_out();
        self.finish(is_whole, left_out)
    }

    fn check(&mut self, listed: &Listed) -> Result<()> {
        let (path, table) = (&listed.path, &self.input.table);
        let refuse = |reason: String| Err(Error::bad_path(&self.input.name, path, reason));
        let named = detect::named(path.as_bytes());
        self.files += 1;
        self.bytes += listed.size.unwrap_or(0);
        self.empty_files += u64::from(listed.size == Some(0));
        self.check_folder(path)?;
        let head = self.head(listed, named)?;
        let format = match named.kind {
            _ if !table.by_name => table.format,
            NamedKind::Table(format) => format,
            NamedKind::Other(what) => return refuse(detect::unread(what)),
            NamedKind::Unknown => match head.as_deref().map(detect::content) {
                Some(Content::Parquet) => {
                    self.by_content = true;
                    TableFormat::Parquet
                }
                Some(Content::Other(what)) => return refuse(detect::unread(what)),
                _ => {
                    self.unknown.get_or_insert_with(|| path.clone());
                    return Ok(());
                }
            },
        };
        match named.kind {
            NamedKind::Table(other)
                if other != format && !(other.is_delimited() && format.is_delimited()) =>
            {
                self.misnamed.get_or_insert((0, path.clone(), other.word())).0 += 1;
            }
            NamedKind::Other(what) => self.misnamed.get_or_insert((0, path.clone(), what)).0 += 1,
            _ => {}
        }
        self.formats.entry(format.word()).or_insert((format, 0, path.clone())).1 += 1;
        if let Some(compression) = named.compression {
            *self.compressed_files.entry(compression.word()).or_default() += 1;
        }
        let Some(head) = head else { return Ok(()) };
        if let Some(reason) = detect::refusal(named, format, &head) {
            return refuse(reason);
        }
        if format == TableFormat::Parquet && is_cut_short(listed) {
            return refuse(
                "is cut short: it does not end as a Parquet file does; write it again".to_owned(),
            );
        }
        if format == TableFormat::Parquet && !path.is_url() && self.heads <= SHAPES_MAX {
            self.compare_shape(path);
        }
        if format.is_text() && named.compression.is_none() && !head.is_empty() {
            let is_whole = listed.size == Some(head.len() as u64);
            self.check_text(path, format, &head, is_whole)?;
        } else if format.is_delimited() && self.files == 1 && !path.is_url() {
            // The header of a compressed file. An unreadable file is reported when a worker reads it.
            let cells = tables::header_cells(path.as_path(), &self.options_for(format));
            self.check_names(path, &cells.unwrap_or_default());
        }
        Ok(())
    }

    /// Rejects tables whose log says which of their files count, and notes columns that only the path has.
    fn check_folder(&mut self, path: &ItemPath) -> Result<()> {
        let folder = path.as_path().parent().unwrap_or(Path::new(""));
        if folder == self.folder {
            return Ok(());
        }
        self.folder = folder.to_owned();
        let is_above = |above: &&Path| self.starts.iter().any(|start| above.starts_with(start));
        for above in folder.ancestors().take_while(is_above) {
            let log = if above.join("_delta_log").is_dir() {
                "a Delta table"
            } else if above.join("metadata/version-hint.text").is_file() {
                "an Iceberg table"
            } else {
                continue;
            };
            let message = format!(
                "is {log}, whose log says which of its files count; export its rows to Parquet files"
            );
            return Err(Error::bad_path(&self.input.name, &ItemPath::from(above), message));
        }
        if self.input.partition_format.is_none() {
            self.note_keys(path, folder);
        }
        Ok(())
    }

    /// Notes columns that only the names of folders have, with the format that reads them.
    fn note_keys(&mut self, path: &ItemPath, folder: &Path) {
        let is_below = |above: &&Path| {
            self.starts.iter().any(|start| above.starts_with(start) && *above != start)
        };
        let names = folder.ancestors().take_while(is_below).filter_map(Path::file_name);
        let mut names: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
        names.reverse();
        let key = |name: &str| {
            let (key, _) = name.split_once('=')?;
            (!key.is_empty() && !key.contains(['{', '}', '*', ':'])).then(|| key.to_owned())
        };
        if let Some(first) = names.iter().position(|name| key(name).is_some()) {
            let names = &names[first..];
            let mut columns = Vec::new();
            let parts = names.iter().map(|name| match key(name) {
                Some(key) if !columns.contains(&key) => {
                    columns.push(key.clone());
                    format!("{key}={{{key}}}/")
                }
                _ => "*/".to_owned(),
            });
            let note = format!(
                "lies in the folder {}, and no column is read from its name: set `partition_format: \"{}*\"` if `run` \
                 needs one",
                names.join("/"),
                parts.collect::<String>()
            );
            self.note("partition_format", path, note);
        }
    }

    /// Compares the columns of a Parquet file with those of the first. An unreadable file is reported when it is
    /// planned.
    fn compare_shape(&mut self, path: &ItemPath) {
        let Ok(mut shape) = tables::parquet_shape(path.as_path()) else { return };
        let listed = &self.input.table.columns;
        shape.retain(|(name, _)| listed.is_empty() || listed.contains(name));
        if !listed.is_empty() {
            shape.sort();
        }
        let Some((_, first)) = &self.shape else {
            self.shape = Some((path.clone(), shape));
            return;
        };
        if *first == shape {
            return;
        }
        let of = |shape: &[(String, String)], name: &str| {
            shape.iter().find(|(other, _)| other == name).map(|(_, kind)| kind.clone())
        };
        let differs =
            first.iter().chain(&shape).map(|(name, _)| (name, of(first, name), of(&shape, name)));
        let difference = match differs.clone().find(|(_, before, now)| before != now) {
            None => "its columns have another order".to_owned(),
            Some((name, Some(_), None)) => format!("it has no column {name}"),
            Some((name, None, _)) => format!("its column {name} is new"),
            Some((name, Some(before), Some(now))) => {
                format!("its column {name} is {now}, not {before}")
            }
        };
        self.other_shape.get_or_insert_with(|| (0, path.clone(), difference)).0 += 1;
    }

    /// Reads the first bytes of a file. Returns `None` once enough files have been read.
    fn head(&mut self, listed: &Listed, named: NamedFormat) -> Result<Option<Vec<u8>>> {
        let bad = |message: &str| Error::bad_path(&self.input.name, &listed.path, message);
        if listed.path.is_url() {
            let is_first = match named.kind {
                NamedKind::Table(format) => !self.formats.contains_key(format.word()),
                _ => self.formats.is_empty() && self.unknown.is_none(),
            };
            if !is_first {
                return Ok(None);
            }
            let head =
                self.remote.first_bytes(&listed.path, listed.size.unwrap_or(0), HEAD_BYTES as u64);
            return head
                .map(|head| Some(head.to_vec()))
                .map_err(|error| bad("cannot be read").because(error));
        }
        if self.heads == LOCAL_HEADS_MAX {
            return Ok(None);
        }
        self.heads += 1;
        let mut head = vec![0; HEAD_BYTES];
        let read = File::open(listed.path.as_path()).and_then(|file| file.read_at(&mut head, 0));
        let length = read.map_err(|error| bad(UNREADABLE).because(error))?;
        head.truncate(length);
        Ok(Some(head))
    }

    fn check_text(
        &mut self,
        path: &ItemPath,
        format: TableFormat,
        head: &[u8],
        is_whole: bool,
    ) -> Result<()> {
        let options = self.options_for(format);
        let peek = tables::peek(head, is_whole, &options);
        if let Some(reason) = peek.refusal {
            return Err(Error::bad_path(&self.input.name, path, reason));
        }
        self.byte_order_mark.get_or_insert(peek.mark);
        for (key, note) in peek.notes {
            self.note(key, path, note);
        }
        self.check_names(path, &peek.first_row);
        if peek.first_row.is_empty() || options.header != protocol::HeaderMode::AllFilesSameHeaders
        {
            return Ok(());
        }
        match &self.header {
            None => self.header = Some((path.clone(), peek.first_row)),
            // If columns are listed, only those matter. The worker that reads the file compares them.
            Some((_, first)) if options.columns.is_empty() && *first != peek.first_row => {
                self.other_header.get_or_insert((0, path.clone())).0 += 1;
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn options_for(&self, format: TableFormat) -> TableOptions {
        let table = &self.input.table;
        TableOptions { format, delimiter: table.delimiter_for(format), ..table.clone() }
    }

    /// Notes doubtful names in the first line of a file, if it names the columns.
    fn check_names(&mut self, path: &ItemPath, cells: &[String]) {
        if self.input.table.header.is_in(self.files == 1) {
            for (kind, note) in tables::doubtful_names(cells) {
                self.note(kind, path, note);
            }
        }
    }

    fn note(&mut self, key: &'static str, path: &ItemPath, note: String) {
        self.notes.entry(key).or_insert_with(|| (0, path.clone(), note)).0 += 1;
    }

    fn finish(self, is_whole: bool, left_out: LeftOut) -> Result<Survey> {
        let name = &self.input.name;
        if self.formats.len() > 1 {
            let several = self.formats.values().map(|(format, files, first)| {
                let first = first.display();
                if *files == 1 {
                    format!("{} ({first})", format.word())
                } else {
                    format!("{} ({files} files, such as {first})", format.word())
                }
            });
            let several: Vec<String> = several.collect();
            let message =
                format!("its files are of several formats: {}; {ONE_FORMAT}", several.join(", "));
            return Err(Error::bad_input(name, message));
        }
        if let Some(path) = self.unknown {
            let reason = match self.formats.keys().next() {
                None => format!("has a name that does not show its format; {SET_FORMAT}"),
                Some(format) => format!(
                    "has a name that does not show its format, among files that are {format}; {ONE_FORMAT}"
                ),
            };
            return Err(Error::bad_path(name, &path, reason));
        }
        let Some((format, _, _)) = self.formats.into_values().next() else {
            return Err(Error::bad_input(
                name,
                "holds no files; put files there, or correct the job file",
            ));
        };
        let more = |files: u64| match files {
            0 | 1 => String::new(),
            2 => " (and one more file)".to_owned(),
            files => format!(" (and {} more files)", files - 1),
        };
        let mut notes = Vec::new();
        if let Some((files, path, what)) = self.misnamed {
            let (path, format, more) = (path.display(), format.word(), more(files));
            notes.push(format!(
                "{path}{more} is {what} by its name and read as {format}, as `format` says"
            ));
        }
        for (files, path, note) in self.notes.into_values() {
            notes.push(format!("{}{} {note}", path.display(), more(files)));
        }
        if let (Some((first, _)), Some((files, other))) = (self.header, self.other_header) {
            let (first, other, more) = (first.display(), other.display(), more(files));
            notes.push(format!(
                "{other}{more} begins with another line than {first}, whose column names are used for all files: set `header: \
                 all_files_different_headers` to read each file by its own, or `header: no_header` if they have none, or \
                 make the headers alike"
            ));
        }
        if let (Some((first, _)), Some((files, other, difference))) = (self.shape, self.other_shape)
        {
            let (first, other, more) = (first.display(), other.display(), more(files));
            notes.push(format!(
                "{other}{more} has other columns than {first} ({difference}), and `run` gets those of each file: make the \
                 files alike, or an input of each kind"
            ));
        }
        let tells_delta = |example: &String| example.contains("/_delta_log/");
        if let Some(example) = left_out.examples.iter().find(|example| tells_delta(example)) {
            let message = format!(
                "is a Delta table ({example}), whose log says which of its files count; export its rows to Parquet files"
            );
            return Err(Error::bad_input(name, message));
        }
        if !is_whole {
            notes.push(format!(
                "{name}: {} objects were checked before the job, and there are more; each of the others is checked when it \
                 is planned and read, and fails its mini-batches if it is of another kind",
                self.files
            ));
        }
        let format_reason = match self.input.table.by_name {
            false => "`format` says so",
            true if self.by_content => "by the content of its files",
            true => "by the names of its files",
        };
        Ok(Survey {
            format,
            format_reason,
            files: self.files,
            bytes: self.bytes,
            empty_files: self.empty_files,
            compressed_files: self.compressed_files,
            is_whole,
            byte_order_mark: self.byte_order_mark.flatten(),
            left_out,
            notes,
        })
    }
}

#[cfg(test)]
mod tests {
    use protocol::MiniBatchSize;

    use super::*;
    use crate::remote::fixtures::bucket;

    /// The plan rejects by name an object that the survey of one page cannot see.
    #[test]
    fn object_of_another_format_after_the_first_page_is_rejected_by_name() {
        let mut keys: Vec<String> =
            (0..OBJECTS_MAX + 200).map(|number| format!("d/{number:04}.csv")).collect();
        let table = TableOptions {
            by_name: true,
            delimiter: TableOptions::DELIMITER_OF_FORMAT,
            ..TableOptions::default()
        };
        let input = |table: &TableOptions| Input {
            name: "sales".to_owned(),
            kind: InputKind::Tabular,
            paths: vec![ItemPath::from("s3://bucket/d/")],
            partition_format: None,
            table: table.clone(),
        };
        for (other, expected) in [
            ("d/zzzz.jsonl", "zzzz.jsonl is jsonl by its name"),
            ("d/zzzz.xlsx", "zzzz.xlsx is an Excel workbook"),
        ] {
            keys.push(other.to_owned());
            let remote = bucket(&keys.iter().map(String::as_str).collect::<Vec<_>>());
            keys.pop();
            let inputs = Inputs::over(remote);
            let spec = JobSpec { inputs: vec![input(&table)], ..JobSpec::example() };
            let survey =
                inputs.survey(&spec).remove(0).expect("the first page is alike").expect("a table");
            assert!(!survey.is_whole);
            assert_eq!(survey.files, OBJECTS_MAX);
            let note = survey.notes.last().expect("it says what it has not seen");
            assert!(note.starts_with("sales: 1000 objects were checked before the job"), "{note}");
            let settled = TableOptions { format: survey.format, delimiter: b',', ..table.clone() };
            let mini_batch_size = MiniBatchSize::Bytes(100);
            let spec =
                JobSpec { inputs: vec![input(&settled)], mini_batch_size, ..JobSpec::example() };
            let error =
                format!("{:#}", inputs.plan(&spec).find_map(Result::err).expect("rejected"));
            assert!(error.contains(expected), "{error}");
        }
    }
}
