//! The inputs of a job at its start: opened stores, and listings that have begun.
//!
//! A start looks at an input several times: at the names and the beginnings of its files, at their columns, and to plan
//! it. [`Inputs`] lists it once. It keeps the first files, and the position of the listing after them, from which the
//! last look continues. Memory does not grow with the number of files. Only types that the first files do not show,
//! because these have hardly any rows, take another listing.
//!
//! Only the plan of local files walks the folders again. The walk is fast, and finds the files as they are at that
//! time.

use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, Mutex, MutexGuard};

use protocol::{Input, InputKind, ItemPath, JobSpec};
use storage::{LeftOut, StoreOptions};

use crate::error::{Error, Result};
use crate::listing::{Listed, Listing, Tally};
use crate::remote::Remote;
use crate::walk::Outputs;

/// Number of files that are kept: one page of a listing of objects.
pub(crate) const FILES_KEPT: usize = 1000;

/// The inputs of a job. Clones share stores and listings.
#[derive(Clone, Default)]
pub struct Inputs {
    pub(crate) remote: Arc<Remote>,
    begun: Arc<Mutex<Vec<Arc<BegunListing>>>>,
}

/// A listing that has begun.
struct BegunListing {
    kind: InputKind,
    paths: Vec<ItemPath>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kept: Vec<Listed>,
    /// The listing after the kept files, unless a reader has taken it.
    rest: Option<Listing>,
    /// The names that the listing left out; set once the kept files are all files.
    end: Option<LeftOut>,
}

impl Inputs {
    /// Creates the inputs, which open no store yet.
    pub fn new(options: &StoreOptions) -> Self {
        Self::over(Arc::new(Remote::new(options)))
    }

    pub(crate) fn over(remote: Arc<Remote>) -> Self {
        Self { remote, begun: Arc::default() }
    }

    /// Returns the digest that [`storage::PlanComplete::inputs_digest`] has while the inputs are unchanged. Lists, but
    /// plans nothing.
    pub async fn digest(&self, spec: &JobSpec) -> anyhow::Result<String> {
        let (inputs, spec) = (self.clone(), spec.clone());
        let digest = tokio::task::spawn_blocking(move || -> Result<String> {
            let mut tally = Tally::default();
            for input in spec.inputs.iter().filter(|_| spec.rank_mini_batch_count == 0) {
                tally.begin_input(input);
                inputs
                    .planned_files(&spec, input)
                    .try_for_each(|listed| listed.map(|listed| tally.add(&listed)))?;
            }
            Ok(tally.digest())
        });
        Ok(digest.await??)
    }

    /// Returns the columns in the files of an input, without those from the path.
    pub fn columns(&self, spec: &JobSpec, index: usize) -> Result<Vec<String>> {
        let input = &spec.inputs[index];
        crate::schema::columns(input, self.files(spec, input), &self.remote)
    }

    /// Returns whether no file of an input can be found.
    pub fn finds_nothing(&self, spec: &JobSpec, index: usize) -> bool {
        self.files(spec, &spec.inputs[index]).next().is_none_or(|first| first.is_err())
    }

    /// Returns the files of an input, for a look at some of them.
    pub(crate) fn files(&self, spec: &JobSpec, input: &Input) -> Files {
        let outputs = Outputs::of(spec);
        let mut begun = self.begun.lock().expect("no holder panics");
        let known =
            begun.iter().find(|begun| begun.kind == input.kind && begun.paths == input.paths);
        let shared = known.cloned().unwrap_or_else(|| {
            let state = State {
                rest: Some(Listing::new(input, Arc::clone(&self.remote), outputs.clone())),
                ..State::default()
            };
            let new = BegunListing {
                kind: input.kind,
                paths: input.paths.clone(),
                state: Mutex::new(state),
            };
            begun.push(Arc::new(new));
            Arc::clone(&begun[begun.len() - 1])
        });
        let remote = Arc::clone(&self.remote);
        Files { input: input.clone(), remote, outputs, shared: Some(shared), next: 0, own: None }
    }

    /// Returns the files of an input as the plan needs them.
    pub(crate) fn planned_files(&self, spec: &JobSpec, input: &Input) -> Files {
        let is_remote = |path: &ItemPath| path.is_url() && !path.as_bytes().starts_with(b"file:");
        if input.paths.iter().all(is_remote) {
            return self.files(spec, input);
        }
        let remote = Arc::clone(&self.remote);
        let outputs = Outputs::of(spec);
        let own = Some(Listing::new(input, Arc::clone(&remote), outputs.clone()));
        Files { input: input.clone(), remote, outputs, shared: None, next: 0, own }
    }
}

impl Debug for Inputs {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Inputs").finish_non_exhaustive()
    }
}

/// The files of one input. Ends after the first error.
pub(crate) struct Files {
    input: Input,
    remote: Arc<Remote>,
    outputs: Outputs,
    /// `None` once this reader has a listing of its own.
    shared: Option<Arc<BegunListing>>,
    /// Number of kept files that it has returned.
    next: usize,
    own: Option<Listing>,
}

impl Files {
    /// Returns the names that the listing has left out.
    pub(crate) fn left_out(&self) -> LeftOut {
        match (&self.own, &self.shared) {
            (Some(own), _) => own.left_out(),
            (None, Some(shared)) => shared.lock().end.clone().unwrap_or_default(),
            (None, None) => LeftOut::default(),
        }
    }

    /// Lists the input again, and skips the files that this reader has returned. Fails if the listing begins with others: the
    /// plan would have some files twice, or not at all.
    fn list_again(&self, returned: &[Listed]) -> Result<Listing> {
        let mut listing = Listing::new(&self.input, Arc::clone(&self.remote), self.outputs.clone());
        for before in returned {
            let now = listing.next().transpose()?;
            if now.is_none_or(|now| now.path != before.path) {
                let message = format!(
                    "files have come or gone while they were listed, one of them beside {}; run the job again",
                    before.path.display()
                );
                return Err(Error::bad_input(&self.input.name, message));
            }
        }
        Ok(listing)
    }
}

impl Iterator for Files {
    type Item = Result<Listed>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(shared) = self.shared.clone() {
            let mut state = shared.lock();
            if let Some(listed) = state.kept.get(self.next) {
                self.next += 1;
                return Some(Ok(listed.clone()));
            }
            if state.end.is_some() {
                return None;
            }
            let rest = state.rest.take().map_or_else(|| self.list_again(&state.kept), Ok);
            let mut listing = match rest {
                Ok(listing) => listing,
                Err(error) => {
                    self.shared = None;
                    return Some(Err(error));
                }
            };
            if state.kept.len() < FILES_KEPT && self.next == state.kept.len() {
                match listing.next() {
                    Some(Ok(listed)) => {
                        state.kept.push(listed.clone());
                        state.rest = Some(listing);
                        self.next += 1;
                        return Some(Ok(listed));
                    }
                    None => {
                        state.end = Some(listing.left_out());
                        return None;
                    }
                    // The next reader lists the input again, and meets the error itself.
                    Some(Err(error)) => {
                        (self.shared, self.own) = (None, Some(listing));
                        return Some(Err(error));
                    }
                }
            }
            (self.shared, self.own) = (None, Some(listing));
        }
        self.own.as_mut()?.next()
    }
}

impl BegunListing {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use protocol::{MiniBatchSize, TableOptions};

    use super::*;
    use crate::remote::fixtures::bucket;

    fn job(path: ItemPath, kind: InputKind) -> JobSpec {
        let table = TableOptions { columns: vec!["1".to_owned()], ..TableOptions::default() };
        let input = Input {
            name: "data".to_owned(),
            kind,
            paths: vec![path],
            partition_format: None,
            table,
        };
        let mini_batch_size = match kind {
            InputKind::File => MiniBatchSize::Files(10),
            InputKind::Tabular => MiniBatchSize::Bytes(100),
        };
        JobSpec { inputs: vec![input], mini_batch_size, ..JobSpec::example() }
    }

    /// Does everything that a start does. Returns the number of listings, and of files planned.
    fn start(inputs: &Inputs, spec: &JobSpec) -> (usize, u64) {
        inputs.survey(spec).remove(0).expect("readable");
        assert_eq!(inputs.missing_columns(spec), []);
        let mut plan = inputs.plan(spec);
        plan.schemas().expect("readable");
        plan.by_ref().for_each(|planned| drop(planned.expect("listable")));
        (inputs.remote.listings.load(Ordering::Relaxed), plan.totals().files)
    }

    #[test]
    fn store_input_is_listed_once() {
        let keys: Vec<String> =
            (0..2 * FILES_KEPT + 500).map(|number| format!("d/{number:05}.csv")).collect();
        for kind in [InputKind::File, InputKind::Tabular] {
            let inputs = Inputs::over(bucket(&keys.iter().map(String::as_str).collect::<Vec<_>>()));
            assert_eq!(start(&inputs, &job("s3://bucket/d/".into(), kind)), (1, keys.len() as u64));
        }
    }

    #[test]
    fn local_input_is_walked_once_besides_the_plan() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = 2 * FILES_KEPT + 500;
        (0..files).for_each(|number| {
            std::fs::write(folder.path().join(format!("{number:05}.csv")), "1\n2\n")
                .expect("writable");
        });
        for kind in [InputKind::File, InputKind::Tabular] {
            let inputs = Inputs::default();
            assert_eq!(
                start(&inputs, &job(folder.path().to_owned().into(), kind)),
                (2, files as u64)
            );
        }
    }

    #[test]
    fn every_reader_gets_all_files() {
        let keys: Vec<String> =
            (0..FILES_KEPT + 3).map(|number| format!("d/{number:05}")).collect();
        let inputs = Inputs::over(bucket(&keys.iter().map(String::as_str).collect::<Vec<_>>()));
        let spec = job("s3://bucket/d/".into(), InputKind::File);
        let read = || {
            inputs
                .files(&spec, &spec.inputs[0])
                .map(|listed| listed.expect("listable").path)
                .collect::<Vec<_>>()
        };
        let (mut first, mut second) =
            (inputs.files(&spec, &spec.inputs[0]), inputs.files(&spec, &spec.inputs[0]));
        let paths = [&mut first, &mut second]
            .map(|files| files.next().expect("a file").expect("listable").path);
        assert_eq!(paths[0], paths[1]);
        let expected = read();
        assert_eq!(expected.len(), keys.len());
        assert_eq!(read(), expected, "the listing was taken by the reader before");
        let rest: Vec<_> = first.map(|listed| listed.expect("listable").path).collect();
        assert_eq!(rest, expected[1..]);
        assert_eq!(second.count(), keys.len() - 1);
    }

    #[test]
    fn files_that_come_or_go_between_two_listings_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let name = |number: usize| folder.path().join(format!("{number:05}"));
        (0..FILES_KEPT + 3).for_each(|number| std::fs::write(name(number), "").expect("writable"));
        let inputs = Inputs::default();
        let spec = job(folder.path().to_owned().into(), InputKind::File);
        assert_eq!(inputs.files(&spec, &spec.inputs[0]).count(), FILES_KEPT + 3);
        std::fs::remove_file(name(7)).expect("it is there");
        let mut listed = inputs.files(&spec, &spec.inputs[0]).skip(FILES_KEPT);
        let error = listed.next().expect("not the end").expect_err("a file is missing");
        assert!(error.to_string().contains("files have come or gone"), "{error}");
        assert!(listed.next().is_none());
        std::fs::remove_dir_all(folder.path()).expect("it is there");
        let mut listed = inputs.files(&spec, &spec.inputs[0]).skip(FILES_KEPT);
        listed.next().expect("not the end").expect_err("the folder is missing");
    }
}
