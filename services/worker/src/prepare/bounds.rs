//! What a descriptor may name: the inputs of its job, and its own line of the plan.
//!
//! A descriptor is what somebody has put on a queue. Whoever can do that chooses neither what a node reads with its own
//! rights (`file:///etc/shadow`, another bucket, the metadata service), nor whose rows it works on.

use std::path::{Component, Path};

use protocol::{Descriptor, ItemPath, JobSpec, Work};
use storage::PLAN_CHUNK_MINI_BATCHES;
use url::Url;

/// What begins a pattern in a path. `?` begins the query of a URL.
const PATTERN: &[u8] = b"*?[{\\";
const URL_PATTERN: &[u8] = b"*[{";

/// The places that the inputs of one job lead to, by input.
#[derive(Debug)]
pub struct Bounds {
    job_id: String,
    inputs: Vec<Vec<Place>>,
}

/// Where one path of an input leads.
#[derive(Debug)]
enum Place {
    /// A file or folder.
    Local(Vec<u8>),
    /// An object, a prefix, or a whole store.
    Url(Url),
}

impl Bounds {
    /// Of a job as it stands in the store.
    pub fn new(spec: &JobSpec) -> Self {
        let places = |paths: &[ItemPath]| paths.iter().flat_map(places).collect();
        Self { job_id: spec.job_id.clone(), inputs: spec.inputs.iter().map(|input| places(&input.paths)).collect() }
    }

    /// In the error, what the descriptor names that is not its own.
    pub fn check(&self, descriptor: &Descriptor) -> Result<(), String> {
        if descriptor.job_id != self.job_id {
            return Err(format!("it belongs to job {}", descriptor.job_id));
        }
        match &descriptor.work {
            Work::Files { input, paths, versions, .. } => {
                if !versions.is_empty() && versions.len() != paths.len() {
                    return Err(format!("it has {} paths and {} versions", paths.len(), versions.len()));
                }
                paths.iter().try_for_each(|path| self.holds(*input, path))
            }
            Work::Rows { input, blocks, .. } => blocks.iter().try_for_each(|block| self.holds(*input, &block.path)),
            Work::Rank => Ok(()),
            Work::Planned { chunk, line } => {
                let mini_batch = descriptor.mini_batch;
                let own = (mini_batch / PLAN_CHUNK_MINI_BATCHES, mini_batch % PLAN_CHUNK_MINI_BATCHES);
                match (*chunk, *line) == own {
                    true => Ok(()),
                    false => Err(format!("its place in the plan is not chunk {chunk}, line {line}")),
                }
            }
        }
    }

    fn holds(&self, input: u32, path: &ItemPath) -> Result<(), String> {
        let places = self.inputs.get(input as usize).ok_or_else(|| format!("the job has no input {input}"))?;
        let is_held = match path.is_url() {
            true => match std::str::from_utf8(path.as_bytes()).ok().and_then(|text| Url::parse(text).ok()) {
                Some(url) => {
                    places.iter().any(|place| matches!(place, Place::Url(base) if storage::is_below(&url, base)))
                }
                None => false,
            },
            false => {
                let is_plain = !Path::new(path.as_path()).components().any(|part| part == Component::ParentDir);
                is_plain
                    && places.iter().any(|place| matches!(place, Place::Local(base) if is_in(path.as_bytes(), base)))
            }
        };
        match is_held {
            true => Ok(()),
            false => Err(format!("{} is not in the inputs of the job", path.display())),
        }
    }
}

/// Where a path of an input leads: as it is written, and where it is a pattern, the folder in front of it.
fn places(path: &ItemPath) -> Vec<Place> {
    let text = path.as_bytes();
    let in_front_of = |pattern: &[u8]| {
        let first = text.iter().position(|byte| pattern.contains(byte))?;
        text[..first].iter().rposition(|&byte| byte == b'/').map(|slash| &text[..=slash])
    };
    let url = |text: &[u8]| std::str::from_utf8(text).ok().and_then(|text| Url::parse(text).ok());
    if !path.is_url() {
        let folder = in_front_of(PATTERN).map(|folder| Place::Local(folder.to_vec()));
        return [Some(Place::Local(text.to_vec())), folder].into_iter().flatten().collect();
    }
    let Some(whole) = url(text) else { return Vec::new() };
    if let Ok(local) = whole.to_file_path()
        && whole.scheme() == "file"
    {
        return places(&ItemPath::from(local));
    }
    let folder = in_front_of(URL_PATTERN).filter(|_| !whole.scheme().starts_with("http")).and_then(url);
    [Some(Place::Url(whole)), folder.map(Place::Url)].into_iter().flatten().collect()
}

/// Whether a path is the file or folder `base`, or lies in it.
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
        Bounds::new(&JobSpec { job_id: "job".to_owned(), inputs: vec![input], ..JobSpec::example() })
    }

    fn descriptor(work: Work) -> Descriptor {
        Descriptor {
            job_id: "job".to_owned(),
            mini_batch: 1030,
            tries_spent: 0,
            deliveries_lost: 0,
            traceparent: None,
            work,
        }
    }

    fn files(input: u32, path: &str) -> Descriptor {
        descriptor(Work::Files { input, paths: vec![path.into()], versions: vec![], key: vec![] })
    }

    #[test]
    fn a_descriptor_names_nothing_outside_the_inputs() {
        let bounds =
            bounds(&["/data/images", "/data/one.png", "s3://bucket/ref/", "https://host/a.png", "/pat/x*/y.csv"]);
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
            let why = bounds.check(&files(0, path)).expect_err(path);
            assert!(why.ends_with("is not in the inputs of the job"), "{why}");
        }
        assert_eq!(bounds.check(&files(1, "/data/one.png")), Err("the job has no input 1".to_owned()));
        let block =
            Block { path: "/etc/shadow".into(), version: None, range: BlockRange::WholeText, path_columns: vec![] };
        bounds.check(&descriptor(Work::Rows { input: 0, blocks: vec![block], key: vec![] })).expect_err("not an input");
    }

    #[test]
    fn a_file_url_is_a_path() {
        let bounds = bounds(&["file:///data/a%20b/"]);
        bounds.check(&files(0, "/data/a b/c")).expect("listed so");
        bounds.check(&files(0, "file:///data/a%20b/c")).expect_err("never listed so");
    }

    #[test]
    fn a_whole_bucket_is_an_input() {
        let bounds = bounds(&["s3://bucket", "s3://glob/d/*.csv"]);
        bounds.check(&files(0, "s3://bucket/a/b")).expect("in it");
        bounds.check(&files(0, "s3://glob/d/e.csv")).expect("may match");
        bounds.check(&files(0, "s3://glob/e.csv")).expect_err("cannot match");
    }

    #[test]
    fn a_descriptor_is_of_its_job_and_points_to_its_own_line_of_the_plan() {
        let bounds = bounds(&["/data"]);
        let planned = |chunk, line| descriptor(Work::Planned { chunk, line });
        bounds.check(&planned(2, 6)).expect("its own");
        for (chunk, line) in [(2, 7), (0, 1030), (u64::MAX, 6)] {
            bounds.check(&planned(chunk, line)).expect_err("that of another");
        }
        bounds.check(&Descriptor { job_id: "other".to_owned(), ..files(0, "/data/a") }).expect_err("of another job");
        let work = Work::Files { input: 0, paths: vec!["/data/a".into()], versions: vec![], key: vec![] };
        let Work::Files { input, paths, key, .. } = work else { unreachable!("made above") };
        let versions = vec![protocol::FileVersion { bytes: 1, etag: None }; 2];
        bounds.check(&descriptor(Work::Files { input, paths, versions, key })).expect_err("more versions than paths");
    }
}
