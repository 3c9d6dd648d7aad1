//! Where jobs are looked for: on this machine, or in the store of a compute target. Whoever shows them need not care.

use anyhow::{Context, Result, bail};
use protocol::{JobResult, JobSpec, JobState, Progress};
use storage::{JobStore, TargetStore};

use crate::home::Home;

/// A reducer reports every second or so; one that has been silent for so long is gone.
const SILENCE_SECONDS: u64 = 60;

/// All jobs of one place.
#[derive(Clone, Debug)]
pub enum Jobs {
    /// Those of this machine.
    Here(Home),
    /// Those of a compute target.
    There {
        /// What a command needs in order to mean it: ` --target NAME`.
        flag: String,
        /// Its store.
        store: TargetStore,
    },
}

/// A job as it is found.
#[derive(Debug)]
pub struct FoundJob {
    /// Its objects.
    pub store: JobStore,
    /// What it is.
    pub spec: JobSpec,
    /// How it ended, if it has.
    pub result: Option<JobResult>,
}

/// How a job stands, for people.
#[derive(Debug)]
pub struct Standing {
    /// One word.
    pub word: &'static str,
    /// What to know, and what to do; one line.
    pub hint: Option<String>,
}

impl FoundJob {
    /// Reads a job. `None`: it was cut off before it was described, and holds nothing.
    /// `is_mended`: whoever continues it does without a result that cannot be read.
    async fn read(store: JobStore, job_id: &str, is_mended: bool) -> Result<Option<Self>> {
        let spec = match store.spec().await {
            Ok(spec) => spec,
            Err(storage::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("read job {job_id}")),
        };
        let result = match store.result().await {
            Err(storage::Error::Damaged { .. }) if is_mended => None,
            result => result.with_context(|| format!("read job {job_id}"))?,
        };
        Ok(Some(Self { store, spec, result }))
    }

    /// Ended by itself, not by being canceled.
    pub fn has_finished(&self) -> bool {
        self.result.as_ref().is_some_and(|result| result.state != JobState::Canceled)
    }
}

impl Jobs {
    /// Ids of all jobs, newest first.
    pub async fn ids(&self) -> Result<Vec<String>> {
        let mut ids = match self {
            Self::Here(home) => home.job_ids()?,
            Self::There { store, .. } => store.job_ids().await?,
        };
        ids.retain(|id| started(id).is_some());
        ids.sort_by(|one, other| started(other).cmp(&started(one)).then_with(|| other.cmp(one)));
        Ok(ids)
    }

    /// Reads a job. `None`: it was cut off before it was described, and holds nothing.
    pub async fn job(&self, job_id: &str) -> Result<Option<FoundJob>> {
        match self {
            Self::Here(home) => FoundJob::read(JobStore::local(&home.job_folder(job_id))?, job_id, true).await,
            Self::There { store, .. } => FoundJob::read(store.job(job_id), job_id, false).await,
        }
    }

    /// The job a person means: its id, the beginning of one, or a job name, for which the newest is taken.
    pub async fn find(&self, wanted: &str) -> Result<FoundJob> {
        let ids = self.ids().await?;
        let named = |id: &&String| id.len() > ID_SUFFIX && id[..id.len() - ID_SUFFIX] == *wanted;
        let beginning: Vec<&String> = ids.iter().filter(|id| id.starts_with(wanted)).collect();
        let id: &String = match (ids.iter().find(|id| *id == wanted), ids.iter().find(named), beginning.as_slice()) {
            (None, None, [id]) => id,
            (Some(id), _, _) | (None, Some(id), _) => id,
            (None, None, []) => {
                bail!(
                    "there is no job {wanted:?} in {}; `gristmill jobs{}` lists those there are",
                    self.place(),
                    self.flag()
                )
            }
            (None, None, several) => {
                bail!("{wanted:?} may mean any of {} jobs, for example {} or {}", several.len(), several[0], several[1])
            }
        };
        self.job(id).await?.with_context(|| format!("job {id} was cut off before it began; run its job file again"))
    }

    /// Where they are, for people.
    pub fn place(&self) -> String {
        match self {
            Self::Here(home) => home.job_folder("").display().to_string(),
            Self::There { store, .. } => store.url().to_owned(),
        }
    }

    /// What a command that is told to people needs in order to look in the same place.
    pub fn flag(&self) -> String {
        match self {
            Self::Here(_) => String::new(),
            Self::There { flag, .. } => flag.clone(),
        }
    }

    /// How a job stands.
    pub async fn standing(&self, job: &FoundJob, progress: Option<&Progress>) -> Result<Standing> {
        let word = |word| Standing { word, hint: None };
        let id = &job.spec.job_id;
        let interrupted = |what: &str| Standing {
            word: "Interrupted",
            hint: Some(format!("{what}; continue with: gristmill retry {id}{}", self.flag())),
        };
        let ended = |result: &JobResult| match result.state {
            JobState::Completed => word("Completed"),
            JobState::Failed => word("Failed"),
            JobState::Canceled => word("Canceled"),
            JobState::Running => word("Running"),
        };
        match (&job.result, self) {
            (Some(result), _) => Ok(ended(result)),
            (None, Self::Here(home)) if home.is_running(id)? => Ok(word("Running")),
            (None, Self::Here(_)) => Ok(interrupted("the process that ran it is gone")),
            (None, Self::There { store, .. }) => {
                if !store.open_jobs().await?.contains(id) {
                    // It may have ended since it was read.
                    return Ok(match job.store.result().await? {
                        Some(result) => ended(&result),
                        None => interrupted("it was cut off before anything was published"),
                    });
                }
                if job.store.cancel_requested().await?.is_some() {
                    return Ok(Standing { word: "Canceling", hint: self.lacks_reducer(progress) });
                }
                let started = progress.is_some_and(|progress| progress.nodes > 0);
                Ok(Standing {
                    word: if started { "Running" } else { "Queued" },
                    hint: self.lacks_reducer(progress).or_else(|| self.lacks_worker(progress)),
                })
            }
        }
    }

    /// No reducer seems to look after the job. By the clocks of two machines, so it is no more than a hint.
    pub fn lacks_reducer(&self, progress: Option<&Progress>) -> Option<String> {
        let start = format!("start one with: gristmill reducer{}", self.flag());
        let Some(progress) = progress else { return Some(format!("no reducer has looked at it yet; {start}")) };
        let silent = protocol::milliseconds_since_epoch().saturating_sub(progress.at) / 1000;
        (silent > SILENCE_SECONDS).then(|| format!("no reducer has reported for {silent} s; {start}"))
    }

    fn lacks_worker(&self, progress: Option<&Progress>) -> Option<String> {
        let lonely = progress.is_some_and(|progress| progress.nodes == 0);
        lonely.then(|| format!("no worker has begun; start one with: gristmill worker{}", self.flag()))
    }
}

/// Length of `-yyyymmdd-hhmmss-xxxx`.
const ID_SUFFIX: usize = 21;

/// An id for a job that starts now.
pub fn new_job_id(name: &str) -> String {
    let now = chrono::Utc::now();
    let seed = format!("{}-{:?}", std::process::id(), now);
    let random = &blake3::hash(seed.as_bytes()).to_hex()[..4];
    format!("{name}-{}-{random}", now.format("%Y%m%d-%H%M%S"))
}

/// The time part of an id, by which ids sort.
fn started(id: &str) -> Option<&str> {
    let suffix = id.get(id.len().checked_sub(ID_SUFFIX)?..)?;
    let time = &suffix[1..16];
    let is_digit_but = |at: usize| time.bytes().enumerate().all(|(i, byte)| byte.is_ascii_digit() || i == at);
    (suffix.starts_with('-') && is_digit_but(8)).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_whatever_their_names() {
        let id = new_job_id("a-job");
        assert!(started(&id).is_some(), "{id}");
        assert_eq!(started("a-20261121-100203-ab12"), Some("20261121-100203"));
        assert_eq!(started("lost+found"), None);
    }
}
