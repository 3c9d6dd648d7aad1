//! The bounds of a descriptor: the inputs of its job, and its own line of the plan.
//!
//! A descriptor is an untrusted message from a queue. Its sender must not choose what a node reads with the node's own
//! rights (`file:///etc/shadow`, another bucket, the metadata service), nor whose rows the node processes.

use std::path::{Component, Path};

use protocol::{Descriptor, ItemPath, JobSpec, PlanPosition, Work};
use url::Url;

/// Characters that begin a pattern in a path. In a URL, `?` begins the query.
const PATTERN: &[u8] = b"*?[{\\";
const URL_PATTERN: &[u8] = b"*[{";

/// The locations of the inputs of one job, by input.
#[derive(Debug)]
pub struct Bounds {
    job_id: String,
    inputs: Vec<Vec<Location>>,
}

/// A location of an input.
#[derive(Debug)]
enum Location {
    /// A file or folder.
    Local(Vec<u8>),
    /// An object, a prefix, or a whole store.
    Url(Url),
}

/// Why a descriptor is rejected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutOfBounds {
    #[error("it belongs to job {0}")]
    Job(String),
    #[error("it has {paths} paths, {versions} versions and {stamps} stamps")]
    Lengths { paths: usize, versions: usize, stamps: usize },
    #[error("its place in the plan is not chunk {}, line {}", .0.chunk, .0.line)]
    Position(PlanPosition),
    #[error("the job has no input {0}")]
    Input(u32),
    #[error("{0} is not in the inputs of the job")]
    Path(String),
}

impl Bounds {
    /// Returns the bounds of a job.
    pub fn new(spec: &JobSpec) -> Self {
        let locations = |paths: &[ItemPath]| paths.iter().flat_map(locations).collect();
        Self {
            job_id: spec.job_id.clone(),
            inputs: spec.inputs.iter().map(|input| locations(&input.paths)).collect(),
        }
    }

    /// Checks that a descriptor is within the bounds.
    pub fn check(&self, descriptor: &Descriptor) -> Result<(), OutOfBounds> {
        if descriptor.job_id != self.job_id {
            return Err(OutOfBounds::Job(descriptor.job_id.clone()));
        }
        match &descriptor.work {
            Work::Files { input, paths, versions, stamps, .. } => {
                let (count, versions, stamps) = (paths.len(), versions.len(), stamps.len());
                if [versions, stamps].iter().any(|&other| other != 0 && other != count) {
                    return Err(OutOfBounds::Lengths { paths: count, versions, stamps });
                }
                paths.iter().try_for_each(|path| self.check_path(*input, path))
            }
            Work::Rows { input, blocks, .. } => {
                blocks.iter().try_for_each(|block| self.check_path(*input, &block.path))
            }
            Work::Rank => Ok(()),
            Work::Planned { chunk, line } => {
                let position = PlanPosition { chunk: *chunk, line: *line };
                let is_own = position == PlanPosition::of(descriptor.mini_batch);
                is_own.then_some(()).ok_or(OutOfBounds::Position(position))
            }
        }
    }

    fn check_path(&self, input: u32, path: &ItemPath) -> Result<(), OutOfBounds> {
        let locations = self.inputs.get(input as usize).ok_or(OutOfBounds::Input(input))?;
        let is_below = if path.is_url() {
            url(path.as_bytes()).is_some_and(|url| {
                locations.iter().any(
                    |base| matches!(base, Location::Url(base) if storage::is_below(&url, base)),
                )
            })
        } else {
            let is_plain =
                !Path::new(path.as_path()).components().any(|part| part == Component::ParentDir);
            let path = path.as_bytes();
            is_plain
                && locations
                    .iter()
                    .any(|base| matches!(base, Location::Local(base) if is_in(path, base)))
        };
        is_below.then_some(()).ok_or_else(|| OutOfBounds::Path(path.display()))
    }
}

fn url(text: &[u8]) -> Option<Url> {
    Url::parse(std::str::from_utf8(text).ok()?).ok()
}

/// Returns the locations of a path of an input: the path itself and, if it is a pattern, the folder in front of the
/// pattern.
fn locations(path: &ItemPath) -> Vec<Location> {
    let text = path.as_bytes();
    let in_front_of = |pattern: &[u8]| {
        let first = text.iter().position(|byte| pattern.contains(byte))?;
        text[..first].iter().rposition(|&byte| byte == b'/').map(|slash| &text[..=slash])
    };
    if !path.is_url() {
        let folder = in_front_of(PATTERN).map(|folder| Location::Local(folder.to_vec()));
        return [Some(Location::Local(text.to_vec())), folder].into_iter().flatten().collect();
    }
    let Some(whole) = url(text) else { return Vec::new() };
    if let Ok(local) = whole.to_file_path()
        && whole.scheme() == "file"
    {
        return locations(&ItemPath::from(local));
    }
    let folder =
        in_front_of(URL_PATTERN).filter(|_| !whole.scheme().starts_with("http")).and_then(url);
    [Some(Location::Url(whole)), folder.map(Location::Url)].into_iter().flatten().collect()
}

/// Returns whether a path is the file or folder `base`, or lies in it.
fn is_in(path: &[u8], base: &[u8]) -> bool {
    let folder = base.strip_suffix(b"/").unwrap_or(base);
    path == base || path.strip_prefix(folder).is_some_and(|rest| rest.first() == Some(&b'/'))
}

#[cfg(test)]
mod tests {
    use protocol::{Block, BlockRange, Input, InputKind, TableOptions};

    use super::*;

    fn bounds(paths: &[&str]) -> Bounds {
        let input = Input {
            name: "images".to_owned(),
            kind: InputKind::File,
            paths: paths.iter().map(|&path| path.into()).collect(),
            partition_format: None,
            table: TableOptions::default(),
        };
        Bounds::new(&JobSpec {
            job_id: "job".to_owned(),
            inputs: vec![input],
            ..JobSpec::example()
        })
    }

    fn descriptor(work: Work) -> Descriptor {
        crate::scheduler::tests::descriptor(1030, work)
    }

    fn files(input: u32, path: &str) -> Descriptor {
        descriptor(Work::Files {
            input,
            paths: vec![path.into()],
            versions: vec![],
            stamps: vec![],
            key: vec![],
        })
    }

    #[test]
    fn path_outside_the_inputs_is_rejected() {
        let bounds = bounds(&[
            "/data/images",
            "/data/one.png",
            "s3://bucket/ref/",
            "https://host/a.png",
            "/pat/x*/y.csv",
        ]);
        for path in [
            "/data/images/a.png",
            "/data/images/sub/b.png",
            "/data/one.png",
            "s3://bucket/ref/a%20b.png",
            "https://host/a.png",
            "/pat/x1/y.csv",
        ] {
            bounds.check(&files(0, path)).expect(path);
        }
        for path in [
            "/etc/shadow",
            "file:///etc/shadow",
            "/data/images/../../etc/shadow",
            "/data/imagesx/a.png",
            "/data/one.png2",
            "/patx/y",
            "relative.png",
            "",
            "s3://bucket/reference/a.png",
            "s3://bucket/ref/../else/a.png",
            "s3://bucket/ref/%2e%2e/else/a.png",
            "s3://other/ref/a.png",
            "s3://bucket@other/ref/a.png",
            "https://host/a.png/b",
            "https://host:81/a.png",
            "http://host/a.png",
            "http://169.254.169.254/latest/meta-data/iam/security-credentials/",
            "://",
        ] {
            let error = bounds.check(&files(0, path)).expect_err(path);
            assert!(matches!(error, OutOfBounds::Path(_)), "{error}");
        }
        assert_eq!(bounds.check(&files(1, "/data/one.png")), Err(OutOfBounds::Input(1)));
        let block = Block {
            path: "/etc/shadow".into(),
            version: None,
            range: BlockRange::WholeText,
            path_columns: vec![],
        };
        bounds
            .check(&descriptor(Work::Rows {
                input: 0,
                blocks: vec![block],
                rows_before: None,
                key: vec![],
            }))
            .expect_err("not an input");
    }

    #[test]
    fn file_url_is_a_local_path() {
        let bounds = bounds(&["file:///data/a%20b/"]);
        bounds.check(&files(0, "/data/a b/c")).expect("listed like this");
        bounds.check(&files(0, "file:///data/a%20b/c")).expect_err("never listed like this");
    }

    #[test]
    fn whole_bucket_is_an_input() {
        let bounds = bounds(&["s3://bucket", "s3://glob/d/*.csv"]);
        bounds.check(&files(0, "s3://bucket/a/b")).expect("in it");
        bounds.check(&files(0, "s3://glob/d/e.csv")).expect("may match");
        bounds.check(&files(0, "s3://glob/e.csv")).expect_err("cannot match");
    }

    #[test]
    fn descriptor_of_another_job_line_or_length_is_rejected() {
        let bounds = bounds(&["/data"]);
        let planned = |chunk, line| descriptor(Work::Planned { chunk, line });
        bounds.check(&planned(2, 6)).expect("its own");
        for (chunk, line) in [(2, 7), (0, 1030), (u64::MAX, 6)] {
            bounds.check(&planned(chunk, line)).expect_err("that of another");
        }
        bounds
            .check(&Descriptor { job_id: "other".to_owned(), ..files(0, "/data/a") })
            .expect_err("of another job");
        let versions = vec![protocol::FileVersion { bytes: 1, etag: None, modified: None }; 2];
        let paths = vec!["/data/a".into()];
        let work = Work::Files { input: 0, paths, versions, stamps: vec![], key: vec![] };
        let error = bounds.check(&descriptor(work)).expect_err("more versions than paths");
        assert_eq!(error.to_string(), "it has 1 paths, 2 versions and 0 stamps");
    }
}
