//! The mini-batches of a job in order: a pure function of the job and the content of its inputs.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::sync::{Arc, Mutex, MutexGuard};

use protocol::{
    Block, BlockRange, Descriptor, FileVersion, Input, InputKind, ItemPath, JobSpec, MiniBatchSize,
    TableOptions, TableSchema, Work,
};
use storage::PlanComplete;

use crate::blocks::Cutter;
use crate::error::{Error, Result};
use crate::inputs::{Files, Inputs};
use crate::listing::{Listed, Tally};
use crate::partition_format::PartitionFormat;
use crate::remote::{parse_url, readable_path};
use crate::schema::{self, MissingColumn};
use crate::survey::misnamed;

/// The descriptors of a job in order, created while its inputs are listed. Memory does not grow with the number of
/// files, except for the names in one folder, and with partition keys, which combine files from anywhere in the
/// listing.
///
/// The iterator blocks on disk and network, and ends after the first error.
pub struct Plan {
    spec: Arc<JobSpec>,
    inputs: Inputs,
    tally: Arc<Mutex<Tally>>,
    /// Number of inputs begun.
    inputs_begun: usize,
    works: Works,
    mini_batches: u64,
    items: Option<u64>,
    ended: bool,
}

type Works = Box<dyn Iterator<Item = Result<Work>> + Send>;

/// Returns the digest of the inputs, as [`Inputs::digest`] does.
pub async fn inputs_digest(spec: &JobSpec) -> anyhow::Result<String> {
    Inputs::default().digest(spec).await
}

impl Plan {
    fn new(spec: JobSpec, inputs: Inputs) -> Self {
        let works: Works = Box::new((0..spec.rank_mini_batch_count).map(|_| Ok(Work::Rank)));
        Self {
            // A job with ranks has no inputs to list.
            inputs_begun: if spec.rank_mini_batch_count > 0 { spec.inputs.len() } else { 0 },
            spec: Arc::new(spec),
            inputs,
            tally: Arc::default(),
            works,
            mini_batches: 0,
            items: Some(0),
            ended: false,
        }
    }

    /// Returns the totals of the plan so far; those of the job once the iterator has ended.
    pub fn totals(&self) -> PlanComplete {
        let tally = self.tally();
        PlanComplete {
            mini_batches: self.mini_batches,
            items: self.items,
            files: tally.files,
            inputs_digest: tally.digest(),
            left_out: tally.left_out.clone(),
        }
    }

    /// Returns column names and types of every input: `None` for files, and for tables that contain them. Fails if an
    /// input cannot be planned.
    pub fn schemas(&self) -> Result<Vec<Option<TableSchema>>> {
        let remote = &self.inputs.remote;
        let schemas = self.spec.inputs.iter().map(|input| {
            let format = partition_format(&self.spec, input)?;
            check_size(&self.spec, input)?;
            self.inputs.files(&self.spec, input).next().transpose()?;
            if input.kind == InputKind::File {
                return Ok(None);
            }
            let files = || self.inputs.files(&self.spec, input);
            if !input.table.format.is_text() {
                let TableOptions { columns, column_types, path_column, .. } = &input.table;
                if !columns.is_empty() || !column_types.is_empty() || path_column.is_some() {
                    let there = schema::columns(input, files(), remote)?;
                    schema::check_columns(input, &there)?;
                    schema::check_path_column(input, &there)?;
                }
                return Ok(None);
            }
            let path_columns = format.map_or_else(Vec::new, |format| format.names().to_vec());
            schema::infer(input, files, remote, &path_columns).map(Some)
        });
        if self.spec.rank_mini_batch_count > 0 {
            return Ok(vec![None; self.spec.inputs.len()]);
        }
        schemas.collect()
    }

    /// Returns the number of files listed so far.
    pub(crate) fn files(&self) -> u64 {
        self.tally().files
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().expect("no holder panics")
    }

    fn listing(&self, input: &Input) -> Counted {
        self.tally().begin_input(input);
        Counted {
            files: self.inputs.planned_files(&self.spec, input),
            tally: Arc::clone(&self.tally),
            input: input.name.clone(),
            endings: self.spec.file_endings(),
            ended: false,
        }
    }

    fn begin(&self, index: usize) -> Result<Works> {
        let input = &self.spec.inputs[index];
        let format = partition_format(&self.spec, input)?;
        let size = check_size(&self.spec, input)?;
        let index = u32::try_from(index).expect("a job file has few inputs");
        let listing = self.listing(input);
        let cutter = Cutter::new(input, size, Arc::clone(&self.inputs.remote));
        let keys = self.spec.partition_keys.clone();
        Ok(match (input.kind, format) {
            (_, Some(format)) if !keys.is_empty() => {
                let combinations = Combinations::collect(input, listing, &format, &keys, &cutter)?;
                match input.kind {
                    InputKind::File => Box::new(combinations.files(index)),
                    InputKind::Tabular => {
                        Box::new(combinations.rows(index, input.name.clone(), format, cutter))
                    }
                }
            }
            (InputKind::File, _) => {
                let MiniBatchSize::Files(files_max) = size else { unreachable!("checked above") };
                Box::new(FileBatches { listing: listing.peekable(), input: index, files_max })
            }
            (InputKind::Tabular, format) => {
                Box::new(table_blocks(input, index, listing, format, cutter))
            }
        })
    }

    fn try_next(&mut self) -> Result<Option<Work>> {
        loop {
            if let Some(work) = self.works.next() {
                return work.map(Some);
            }
            if self.inputs_begun == self.spec.inputs.len() {
                let is_without_rows = self.spec.run_without_rows && self.mini_batches == 0;
                return if is_without_rows { self.without_rows() } else { Ok(None) };
            }
            self.works = self.begin(self.inputs_begun)?;
            self.inputs_begun += 1;
        }
    }

    /// Returns a mini-batch with no rows of the first table, whose file names the columns; `None` if no input is a
    /// table.
    fn without_rows(&self) -> Result<Option<Work>> {
        let inputs =
            self.spec.inputs.iter().zip(0..).filter(|(input, _)| input.kind == InputKind::Tabular);
        for (input, index) in inputs {
            let Some(listed) = self.inputs.planned_files(&self.spec, input).next().transpose()?
            else {
                continue;
            };
            let range = match input.table.format.is_text() {
                true => BlockRange::WholeText,
                false => BlockRange::RowGroup { row_group: 0, offset: 0, rows: 0 },
            };
            let format = partition_format(&self.spec, input)?;
            let path_columns = columns_of(&input.name, format.as_ref(), &listed.path)?;
            let value_of =
                |key: &String| path_columns.iter().find(|(name, _)| name == key).cloned();
            let key = self.spec.partition_keys.iter().filter_map(value_of).collect();
            let block = Block { path: listed.path, version: listed.version, range, path_columns };
            return Ok(Some(Work::Rows {
                input: index,
                blocks: vec![block],
                rows_before: Some(0),
                key,
            }));
        }
        Ok(None)
    }
}

/// The files of one input, counted in the totals of the plan.
struct Counted {
    files: Files,
    tally: Arc<Mutex<Tally>>,
    input: String,
    /// Endings of which each file name must have one; `None` if any name is allowed.
    endings: Option<&'static [&'static str]>,
    ended: bool,
}

impl Counted {
    fn checked(&self, listed: Listed) -> Result<Listed> {
        let Some(endings) = self.endings else { return Ok(listed) };
        let name = listed.path.as_bytes().to_ascii_lowercase();
        match endings.iter().any(|ending| name.ends_with(ending.as_bytes())) {
            true => Ok(listed),
            false => {
                let message = format!(
                    "is not an input of an MLflow model without a script, which reads {}",
                    endings.join(", ")
                );
                Err(Error::bad_path(&self.input, &listed.path, message))
            }
        }
    }
}

impl Iterator for Counted {
    type Item = Result<Listed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let listed = self.files.next().map(|listed| listed.and_then(|listed| self.checked(listed)));
        let mut tally = self.tally.lock().expect("no holder panics");
        match &listed {
            Some(Ok(listed)) => tally.add(listed),
            Some(Err(_)) => self.ended = true,
            None => {
                tally.left_out.merge(self.files.left_out());
                self.ended = true;
            }
        }
        listed
    }
}

impl Inputs {
    /// Plans a job, without writing or publishing anything.
    pub fn plan(&self, spec: &JobSpec) -> Plan {
        Plan::new(spec.clone(), self.clone())
    }

    /// Returns the names that `columns` lists and the files do not have. Skips an input that cannot be listed or read:
    /// planning reports its error.
    pub fn missing_columns(&self, spec: &JobSpec) -> Vec<MissingColumn> {
        let mut found = Vec::new();
        for (index, input) in spec.inputs.iter().enumerate() {
            let TableOptions { columns, column_types, .. } = &input.table;
            if columns.is_empty() && column_types.is_empty() || spec.rank_mini_batch_count > 0 {
                continue;
            }
            let Ok(there) = schema::columns(input, self.files(spec, input), &self.remote) else {
                continue;
            };
            let format = partition_format(spec, input).ok().flatten();
            let from_path = format.map_or_else(Vec::new, |format| format.names().to_vec());
            found.extend(schema::missing(input, &there).map(|name| MissingColumn {
                input: index,
                name: name.clone(),
                there: there.clone(),
                is_from_path: from_path.contains(name),
            }));
        }
        found
    }
}

impl Iterator for Plan {
    type Item = Result<Descriptor>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let work = self.try_next().transpose();
        self.ended = !matches!(work, Some(Ok(_)));
        let descriptor = work?.map(|work| {
            self.items = self.items.zip(items(&work)).map(|(total, items)| total + items);
            self.mini_batches += 1;
            Descriptor::new(&self.spec.job_id, self.mini_batches - 1, work)
        });
        Some(descriptor)
    }
}

/// Returns the number of items of a mini-batch, if known without reading it.
fn items(work: &Work) -> Option<u64> {
    match work {
        Work::Files { paths, .. } => Some(paths.len() as u64),
        Work::Rows { blocks, .. } => blocks.iter().map(|block| block.range.rows()).sum(),
        Work::Rank => Some(1),
        Work::Planned { .. } => None,
    }
}

pub(crate) fn partition_format(spec: &JobSpec, input: &Input) -> Result<Option<PartitionFormat>> {
    let bad = |message: &str| Error::bad_input(&input.name, message);
    let Some(format) = &input.partition_format else {
        return if spec.partition_keys.is_empty() {
            Ok(None)
        } else {
            Err(bad(
                "partition_keys need a partition_format, such as {user}/{file_name}.csv, that locates them in the path \
                     of a file",
            ))
        };
    };
    let format =
        PartitionFormat::parse(format).map_err(|error| bad("partition_format").because(error))?;
    format
        .check_keys(&spec.partition_keys)
        .map_err(|error| Error::bad_input(&input.name, error))?;
    Ok(Some(format))
}

/// Returns the size of mini-batches. Fails if it does not suit the input.
fn check_size(spec: &JobSpec, input: &Input) -> Result<MiniBatchSize> {
    let ignored = !spec.partition_keys.is_empty()
        || (input.kind == InputKind::Tabular && !input.table.format.is_text());
    let (MiniBatchSize::Files(count) | MiniBatchSize::Bytes(count) | MiniBatchSize::Rows(count)) =
        spec.mini_batch_size;
    let expected = match (input.kind, spec.mini_batch_size) {
        _ if count == 0 => "1 or more",
        (InputKind::File, MiniBatchSize::Bytes(_) | MiniBatchSize::Rows(_)) if !ignored => {
            "a number of files"
        }
        (InputKind::Tabular, MiniBatchSize::Files(_)) if !ignored => {
            "a size such as 1MB, or a number such as 500 rows"
        }
        _ => return Ok(spec.mini_batch_size),
    };
    Err(Error::bad_input(&input.name, format_args!("mini_batch_size must be {expected}")))
}

fn values(input: &str, format: &PartitionFormat, path: &ItemPath) -> Result<Vec<String>> {
    let url = path.is_url().then(|| parse_url(path.as_bytes())).flatten();
    let values = match url.as_ref().and_then(readable_path) {
        Some(readable) => format.values(readable.as_bytes()),
        None => format.values(path.as_bytes()),
    };
    values.ok_or_else(|| {
        Error::bad_path(
            input,
            path,
            "does not match partition_format; correct the format, or leave the file out",
        )
    })
}

/// Returns the columns from the path of a file, in the order of the format.
fn columns_of(
    input: &str,
    format: Option<&PartitionFormat>,
    path: &ItemPath,
) -> Result<Vec<(String, String)>> {
    let Some(format) = format else { return Ok(Vec::new()) };
    Ok(format.names().iter().cloned().zip(values(input, format, path)?).collect())
}

/// Files by count, never across groups.
struct FileBatches {
    listing: Peekable<Counted>,
    input: u32,
    files_max: u64,
}

impl Iterator for FileBatches {
    type Item = Result<Work>;

    fn next(&mut self) -> Option<Self::Item> {
        let first = match self.listing.next()? {
            Ok(first) => first,
            Err(error) => return Some(Err(error)),
        };
        let mut files = FileList::default();
        files.push(first.path, first.version);
        let joins = |next: &Result<Listed>| matches!(next, Ok(next) if next.group == first.group);
        while (files.paths.len() as u64) < self.files_max
            && let Some(Ok(next)) = self.listing.next_if(joins)
        {
            files.push(next.path, next.version);
        }
        Some(Ok(files.work(self.input, Vec::new())))
    }
}

/// The files of one mini-batch.
#[derive(Default)]
struct FileList {
    paths: Vec<ItemPath>,
    /// One for each path.
    versions: Vec<Option<FileVersion>>,
}

impl FileList {
    fn push(&mut self, path: ItemPath, version: Option<FileVersion>) {
        self.paths.push(path);
        self.versions.push(version);
    }

    fn work(self, input: u32, key: Vec<(String, String)>) -> Work {
        let (mut versions, mut stamps) = (Vec::new(), Vec::new());
        if self.paths.iter().any(ItemPath::is_url) {
            let nothing = || FileVersion { bytes: 0, etag: None, modified: None };
            versions =
                self.versions.into_iter().map(|version| version.unwrap_or_else(nothing)).collect();
        } else {
            stamps = self
                .versions
                .iter()
                .map(|version| version.as_ref().map_or(0, FileVersion::stamp))
                .collect();
        }
        Work::Files { input, paths: self.paths, versions, stamps, key }
    }
}

/// Returns each block of each file as a mini-batch.
fn table_blocks(
    input: &Input,
    index: u32,
    listing: Counted,
    format: Option<PartitionFormat>,
    cutter: Cutter,
) -> impl Iterator<Item = Result<Work>> + Send + use<> {
    let name = input.name.clone();
    let by_name = input.table.by_name.then_some(input.table.format);
    let mut rows_before = Some(0);
    let blocks = listing.flat_map(move |listed| {
        let cut = || -> Result<_> {
            let listed = listed?;
            if let Some(reason) = by_name.and_then(|format| misnamed(&listed.path, format)) {
                return Err(Error::bad_path(&name, &listed.path, reason));
            }
            let path_columns = columns_of(&name, format.as_ref(), &listed.path)?;
            let ranges = cutter.mini_batches(&listed)?;
            Ok(ranges.map(move |range| {
                let (range, rows) = range?;
                let (path, version) = (listed.path.clone(), listed.version.clone());
                Ok((Block { path, version, range, path_columns: path_columns.clone() }, rows))
            }))
        };
        match cut() {
            Ok(blocks) => Box::new(blocks) as Box<dyn Iterator<Item = _> + Send>,
            Err(error) => Box::new(std::iter::once(Err(error))),
        }
    });
    blocks.map(move |block| {
        let (block, rows) = block?;
        let work = Work::Rows { input: index, blocks: vec![block], rows_before, key: Vec::new() };
        rows_before = rows_before.zip(rows).map(|(before, rows)| before + rows);
        Ok(work)
    })
}

/// The files of each combination of key values.
struct Combinations {
    keys: Vec<String>,
    files: BTreeMap<Vec<String>, Vec<KeyedFile>>,
}

/// A file of a combination.
struct KeyedFile {
    listed: Listed,
    /// Its ranges, if earlier files decide them.
    ranges: Option<Vec<BlockRange>>,
}

impl Combinations {
    fn collect(
        input: &Input,
        listing: Counted,
        format: &PartitionFormat,
        keys: &[String],
        cutter: &Cutter,
    ) -> Result<Self> {
        let needs_order = input.kind == InputKind::Tabular && cutter.needs_order();
        let place = |key: &String| format.names().iter().position(|name| name == key);
        let places: Vec<usize> = keys.iter().filter_map(place).collect();
        let mut files: BTreeMap<Vec<String>, Vec<KeyedFile>> = BTreeMap::new();
        for listed in listing {
            let listed = listed?;
            let values = values(&input.name, format, &listed.path)?;
            let key = places.iter().map(|&place| values[place].clone()).collect();
            let ranges = if needs_order { Some(cutter.whole(&listed)?) } else { None };
            files.entry(key).or_default().push(KeyedFile { listed, ranges });
        }
        Ok(Self { keys: keys.to_vec(), files })
    }

    fn files(self, input: u32) -> impl Iterator<Item = Result<Work>> + Send {
        self.files.into_iter().map(move |(values, parts)| {
            let mut files = FileList::default();
            parts.into_iter().for_each(|part| files.push(part.listed.path, part.listed.version));
            Ok(files.work(input, self.keys.iter().cloned().zip(values).collect()))
        })
    }

    /// Returns the mini-batches of rows. A combination of empty files has no rows and no mini-batch.
    fn rows(
        self,
        input: u32,
        name: String,
        format: PartitionFormat,
        cutter: Cutter,
    ) -> impl Iterator<Item = Result<Work>> + Send {
        let blocks_of = move |KeyedFile { listed, ranges }: KeyedFile| -> Result<Vec<Block>> {
            let path_columns = columns_of(&name, Some(&format), &listed.path)?;
            let ranges = ranges.map_or_else(|| cutter.whole(&listed), Ok)?;
            let block = |range| {
                let (path, version, path_columns) =
                    (listed.path.clone(), listed.version.clone(), path_columns.clone());
                Block { path, version, range, path_columns }
            };
            Ok(ranges.into_iter().map(block).collect())
        };
        self.files.into_iter().filter_map(move |(values, files)| {
            let key = self.keys.iter().cloned().zip(values).collect();
            let blocks: Result<Vec<Vec<Block>>> = files.into_iter().map(&blocks_of).collect();
            match blocks.map(|blocks| blocks.concat()) {
                Ok(blocks) if blocks.is_empty() => None,
                Ok(blocks) => Some(Ok(Work::Rows { input, blocks, rows_before: None, key })),
                Err(error) => Some(Err(error)),
            }
        })
    }
}
