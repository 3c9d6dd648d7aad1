//! The mini-batches of a job, one after the other: a pure function of the job and of what its inputs hold.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::sync::{Arc, Mutex, MutexGuard};

use protocol::{Block, Descriptor, FileVersion, Input, InputKind, ItemPath, JobSpec, MiniBatchSize, TableSchema, Work};
use storage::{PlanComplete, StoreOptions};

use crate::blocks::Cutter;
use crate::error::{Error, Result};
use crate::listing::{Listed, Listing, Tally};
use crate::partition_format::PartitionFormat;
use crate::remote::Remote;
use crate::schema::{self, MissingColumn};

/// The descriptors of a job in order, made while its inputs are listed. Memory does not grow with the number of files,
/// save for one folder's names, and with partition keys, which bring together what is far apart in the listing.
///
/// The iterator blocks on disk and network, and ends after the first error.
pub struct Plan {
    spec: Arc<JobSpec>,
    remote: Arc<Remote>,
    tally: Arc<Mutex<Tally>>,
    /// Number of inputs begun.
    inputs_begun: usize,
    works: Works,
    mini_batches: u64,
    items: Option<u64>,
    ended: bool,
}

type Works = Box<dyn Iterator<Item = Result<Work>> + Send>;

/// The plan of a job, without writing or publishing anything: what `gristmill plan` shows.
pub fn plan(spec: &JobSpec) -> Plan {
    plan_with(spec, &StoreOptions::default())
}

/// The same, where inputs are opened with the settings of a compute target.
pub fn plan_with(spec: &JobSpec, options: &StoreOptions) -> Plan {
    let works: Works = Box::new((0..spec.rank_mini_batch_count).map(|_| Ok(Work::Rank)));
    Plan {
        // With ranks, real inputs are not looked at.
        inputs_begun: if spec.rank_mini_batch_count > 0 { spec.inputs.len() } else { 0 },
        spec: Arc::new(spec.clone()),
        remote: Arc::new(Remote::new(options)),
        tally: Arc::default(),
        works,
        mini_batches: 0,
        items: Some(0),
        ended: false,
    }
}

/// The digest that [`PlanComplete::inputs_digest`] has while the inputs stay as they are. Lists, but plans nothing.
pub async fn inputs_digest(spec: &JobSpec) -> anyhow::Result<String> {
    inputs_digest_with(spec, &StoreOptions::default()).await
}

/// The same, where inputs are opened with the settings of a compute target.
pub async fn inputs_digest_with(spec: &JobSpec, options: &StoreOptions) -> anyhow::Result<String> {
    let plan = plan_with(spec, options);
    let digest = tokio::task::spawn_blocking(move || -> Result<String> {
        for input in &plan.spec.inputs[plan.inputs_begun..] {
            plan.listing(input).try_for_each(|listed| listed.map(drop))?;
        }
        Ok(plan.tally().digest())
    });
    Ok(digest.await??)
}

impl Plan {
    /// Totals of what has been planned so far; those of the job once the iterator has ended.
    pub fn totals(&self) -> PlanComplete {
        let tally = self.tally();
        PlanComplete {
            mini_batches: self.mini_batches,
            items: self.items,
            files: tally.files,
            inputs_digest: tally.digest(),
        }
    }

    /// Column names and types of every input: `None` for files, and for tables that carry their own. Fails if an input
    /// cannot be planned, before anything of the plan is used.
    pub fn schemas(&self) -> Result<Vec<Option<TableSchema>>> {
        let schemas = self.spec.inputs.iter().map(|input| {
            let format = partition_format(&self.spec, input)?;
            check_size(&self.spec, input)?;
            let mut listing = Listing::new(input, Arc::clone(&self.remote), Arc::default()).peekable();
            if let Some(Err(_)) = listing.peek() {
                listing.next().transpose()?;
            }
            if input.kind == InputKind::File {
                return Ok(None);
            }
            if !input.table.format.is_text() {
                if !input.table.columns.is_empty() {
                    schema::check_columns(input, &schema::columns(input, listing, &self.remote)?)?;
                }
                return Ok(None);
            }
            let path_columns = format.map_or_else(Vec::new, |format| path_columns(&self.spec, &format));
            schema::infer(input, listing, &self.remote, &path_columns).map(Some)
        });
        if self.spec.rank_mini_batch_count > 0 {
            return Ok(vec![None; self.spec.inputs.len()]);
        }
        schemas.collect()
    }

    /// What inputs list in `columns` and their files do not have. An input that cannot be listed or read is passed over:
    /// planning it says why.
    pub fn missing_columns(&self) -> Vec<MissingColumn> {
        let mut found = Vec::new();
        for (index, input) in self.spec.inputs.iter().enumerate() {
            if input.table.columns.is_empty() || self.spec.rank_mini_batch_count > 0 {
                continue;
            }
            let listing = Listing::new(input, Arc::clone(&self.remote), Arc::default());
            let Ok(there) = schema::columns(input, listing, &self.remote) else { continue };
            let format = partition_format(&self.spec, input).ok().flatten();
            let from_path = format.map_or_else(Vec::new, |format| path_columns(&self.spec, &format));
            found.extend(schema::missing(input, &there).map(|(position, name)| MissingColumn {
                input: index,
                position,
                there: there.clone(),
                is_from_path: from_path.contains(name),
            }));
        }
        found
    }

    /// Files listed so far.
    pub(crate) fn files(&self) -> u64 {
        self.tally().files
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().expect("nobody panics while counting")
    }

    fn listing(&self, input: &Input) -> Listing {
        Listing::new(input, Arc::clone(&self.remote), Arc::clone(&self.tally))
    }

    fn begin(&self, index: usize) -> Result<Works> {
        let input = &self.spec.inputs[index];
        let format = partition_format(&self.spec, input)?;
        let size = check_size(&self.spec, input)?;
        let index = u32::try_from(index).expect("a job file has few inputs");
        let listing = self.listing(input);
        let names = format.as_ref().map_or_else(Vec::new, |format| path_columns(&self.spec, format));
        let cutter = Cutter::new(input, size, Arc::clone(&self.remote));
        let keys = self.spec.partition_keys.clone();
        Ok(match (input.kind, format) {
            (_, Some(format)) if !keys.is_empty() => {
                let combinations = Combinations::collect(input, listing, &format, &keys)?;
                match input.kind {
                    InputKind::File => Box::new(combinations.files(index)),
                    InputKind::Tabular => Box::new(combinations.rows(index, names, cutter)),
                }
            }
            (InputKind::File, _) => {
                let MiniBatchSize::Files(files_max) = size else { unreachable!("checked above") };
                Box::new(FileBatches { listing: listing.peekable(), input: index, files_max })
            }
            (InputKind::Tabular, format) => Box::new(table_blocks(input, index, listing, format, cutter)),
        })
    }

    fn try_next(&mut self) -> Result<Option<Work>> {
        loop {
            if let Some(work) = self.works.next() {
                return work.map(Some);
            }
            if self.inputs_begun == self.spec.inputs.len() {
                return Ok(None);
            }
            self.works = self.begin(self.inputs_begun)?;
            self.inputs_begun += 1;
        }
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
            Descriptor {
                job_id: self.spec.job_id.clone(),
                mini_batch: self.mini_batches - 1,
                tries_spent: 0,
                deliveries_lost: 0,
                traceparent: None,
                work,
            }
        });
        Some(descriptor)
    }
}

/// Items of a mini-batch, where they are known without reading it.
fn items(work: &Work) -> Option<u64> {
    match work {
        Work::Files { paths, .. } => Some(paths.len() as u64),
        Work::Rows { blocks, .. } => blocks.iter().map(|block| block.range.rows()).sum(),
        Work::Rank => Some(1),
        Work::Planned { .. } => None,
    }
}

fn partition_format(spec: &JobSpec, input: &Input) -> Result<Option<PartitionFormat>> {
    let bad = |message: String| Error::bad_input(&input.name, message);
    let Some(format) = &input.partition_format else {
        return if spec.partition_keys.is_empty() {
            Ok(None)
        } else {
            Err(bad("partition_keys need a partition_format, such as {user}/{file_name}.csv, that says where in the \
                     path of a file they stand"
                .to_owned()))
        };
    };
    let format = PartitionFormat::parse(format).map_err(|message| bad(format!("partition_format: {message}")))?;
    format.check_keys(&spec.partition_keys).map_err(bad)?;
    Ok(Some(format))
}

/// Columns that come from the path, in the order of the format: with partition keys exactly these, else all.
fn path_columns(spec: &JobSpec, format: &PartitionFormat) -> Vec<String> {
    let is_wanted = |name: &&String| spec.partition_keys.is_empty() || spec.partition_keys.contains(name);
    format.names().iter().filter(is_wanted).cloned().collect()
}

/// The size of mini-batches, if it has a meaning for the input.
fn check_size(spec: &JobSpec, input: &Input) -> Result<MiniBatchSize> {
    let ignored =
        !spec.partition_keys.is_empty() || (input.kind == InputKind::Tabular && !input.table.format.is_text());
    let (MiniBatchSize::Files(count) | MiniBatchSize::Bytes(count) | MiniBatchSize::Rows(count)) = spec.mini_batch_size;
    let expected = match (input.kind, spec.mini_batch_size) {
        _ if count == 0 => "1 or more",
        (InputKind::File, MiniBatchSize::Bytes(_) | MiniBatchSize::Rows(_)) if !ignored => "a number of files",
        (InputKind::Tabular, MiniBatchSize::Files(_)) if !ignored => "a size such as 1MB, or a number such as 500 rows",
        _ => return Ok(spec.mini_batch_size),
    };
    Err(Error::bad_input(&input.name, format_args!("mini_batch_size must be {expected}")))
}

fn values(input: &str, format: &PartitionFormat, path: &ItemPath) -> Result<Vec<String>> {
    let readable =
        path.is_url().then(|| std::str::from_utf8(path.as_bytes()).ok().and_then(crate::remote::readable_path));
    let values = match readable.flatten() {
        Some(readable) => format.values(readable.as_bytes()),
        None => format.values(path.as_bytes()),
    };
    values.ok_or_else(|| {
        Error::bad_path(input, path, "does not match partition_format; correct the format, or leave the file out")
    })
}

/// Files by count, never across groups.
struct FileBatches {
    listing: Peekable<Listing>,
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
        let mut files = Files::default();
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
struct Files {
    paths: Vec<ItemPath>,
    /// One for each path, where one of them is an object.
    versions: Vec<FileVersion>,
}

impl Files {
    fn push(&mut self, path: ItemPath, version: Option<FileVersion>) {
        let nothing = || FileVersion { bytes: 0, etag: None };
        if version.is_some() || !self.versions.is_empty() {
            self.versions.resize_with(self.paths.len(), nothing);
            self.versions.push(version.unwrap_or_else(nothing));
        }
        self.paths.push(path);
    }

    fn work(self, input: u32, key: Vec<(String, String)>) -> Work {
        Work::Files { input, paths: self.paths, versions: self.versions, key }
    }
}

/// Each block of each file on its own.
fn table_blocks(
    input: &Input,
    index: u32,
    listing: Listing,
    format: Option<PartitionFormat>,
    cutter: Cutter,
) -> impl Iterator<Item = Result<Work>> + Send + use<> {
    let name = input.name.clone();
    listing.flat_map(move |listed| {
        let cut = || -> Result<_> {
            let listed = listed?;
            let path_columns: Vec<(String, String)> = match &format {
                None => Vec::new(),
                Some(format) => format.names().iter().cloned().zip(values(&name, format, &listed.path)?).collect(),
            };
            let ranges = cutter.mini_batches(&listed)?;
            Ok(ranges.map(move |range| {
                let block = Block {
                    path: listed.path.clone(),
                    version: listed.version.clone(),
                    range: range?,
                    path_columns: path_columns.clone(),
                };
                Ok(Work::Rows { input: index, blocks: vec![block], key: Vec::new() })
            }))
        };
        match cut() {
            Ok(works) => Box::new(works) as Works,
            Err(error) => Box::new(std::iter::once(Err(error))),
        }
    })
}

/// The files of each combination of key values.
struct Combinations {
    keys: Vec<String>,
    files: BTreeMap<Vec<String>, Vec<Listed>>,
}

impl Combinations {
    fn collect(input: &Input, listing: Listing, format: &PartitionFormat, keys: &[String]) -> Result<Self> {
        let place = |key: &String| format.names().iter().position(|name| name == key);
        let places: Vec<usize> = keys.iter().filter_map(place).collect();
        let mut files: BTreeMap<Vec<String>, Vec<_>> = BTreeMap::new();
        for listed in listing {
            let listed = listed?;
            let values = values(&input.name, format, &listed.path)?;
            let key = places.iter().map(|&place| values[place].clone()).collect();
            files.entry(key).or_default().push(listed);
        }
        Ok(Self { keys: keys.to_vec(), files })
    }

    fn files(self, input: u32) -> impl Iterator<Item = Result<Work>> + Send {
        self.files.into_iter().map(move |(values, listed)| {
            let mut files = Files::default();
            listed.into_iter().for_each(|listed| files.push(listed.path, listed.version));
            Ok(files.work(input, self.keys.iter().cloned().zip(values).collect()))
        })
    }

    /// A combination of which all files are empty has no rows and makes no mini-batch.
    fn rows(self, input: u32, columns: Vec<String>, cutter: Cutter) -> impl Iterator<Item = Result<Work>> + Send {
        self.files.into_iter().filter_map(move |(values, files)| {
            let key: Vec<(String, String)> = self.keys.iter().cloned().zip(values).collect();
            let in_format_order = columns.iter().filter_map(|name| key.iter().find(|(key, _)| key == name));
            let path_columns: Vec<_> = in_format_order.cloned().collect();
            let mut blocks = Vec::new();
            for listed in files {
                match cutter.whole(&listed) {
                    Ok(ranges) => blocks.extend(ranges.into_iter().map(|range| {
                        let (path, path_columns) = (listed.path.clone(), path_columns.clone());
                        Block { path, version: listed.version.clone(), range, path_columns }
                    })),
                    Err(error) => return Some(Err(error)),
                }
            }
            (!blocks.is_empty()).then_some(Ok(Work::Rows { input, blocks, key }))
        })
    }
}
