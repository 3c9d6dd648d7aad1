//! Decides whether an earlier job of this machine is the same job, and why not. Each job's folder keeps its identity.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use job_file::{Difference, Identity, ModelFolders, RunPeriod};
use protocol::{JobResult, JobSpec, JobState};

use crate::{Home, Index, NewJobReason, Notice, source};

const FILE: &str = "identity.json";
/// Jobs of the same name, perhaps of other documents, that are considered, the newest.
const SAME_NAMES_MAX: usize = 4;
/// The processes of a job may write for a moment longer than its engine.
const LAST_WRITES: Duration = Duration::from_secs(2);

pub fn write(folder: &Path, identity: &Identity) -> Result<()> {
    let path = folder.join(FILE);
    let text = serde_json::to_vec(identity).context("an identity always serialises")?;
    std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

fn read(folder: &Path) -> Option<Identity> {
    serde_json::from_slice(&std::fs::read(folder.join(FILE)).ok()?).ok()
}

/// Whether an earlier job with the same fingerprint is nevertheless another job. `has_finished`: its result may be reused.
pub fn differs(folder: &Path, now: &Identity, has_finished: bool) -> bool {
    read(folder).is_some_and(|earlier| {
        !now.differences(&earlier, RunPeriod { has_finished, ..ran(folder) }).is_empty()
    })
}

/// Returns a warning if script, data or models have changed since the job began. Keeps a script that has changed.
pub fn changed(folder: &Path, spec: &JobSpec, models: &ModelFolders) -> Option<Notice> {
    let earlier = read(folder);
    let now = earlier.as_ref().and_then(|earlier| earlier.renewed(spec, models).ok());
    let found =
        earlier.zip(now.as_ref()).map(|(earlier, now)| now.differences(&earlier, ran(folder)));
    let found = found.unwrap_or_default();
    let script = job_file::script_has_changed(spec);
    if let Some(now) = now.filter(|_| script) {
        source::keep(folder, spec, &now);
    }
    (script || !found.is_empty())
        .then_some(Notice::ChangedSinceStart { script, differences: found })
}

/// Returns a warning if the script or a side input was changed while the job ran.
pub fn changed_while_running(
    folder: &Path,
    spec: &JobSpec,
    models: &ModelFolders,
) -> Option<Notice> {
    let script = job_file::script_has_changed(spec);
    let mut differences = Vec::new();
    if !spec.side_inputs.is_empty()
        && let Some(earlier) = read(folder)
        && let Ok(now) = earlier.renewed(spec, models)
    {
        differences = now.differences(&earlier, ran(folder));
        differences.retain(Difference::is_of_side_input);
    }
    (script || !differences.is_empty())
        .then_some(Notice::ChangedWhileRunning { script, differences })
}

/// Returns why the newest job of the same document and name is neither continued nor reused. Every new job calls it, so it
/// opens few files.
pub fn why_new_job(
    index: &Index,
    home: &Home,
    spec: &JobSpec,
    now: &Identity,
) -> Result<Option<Notice>> {
    let of_document = |id: String| {
        let spec_of_job = std::fs::read(home.job_folder(&id).join("spec.json")).ok();
        let other = spec_of_job.and_then(|text| serde_json::from_slice::<JobSpec>(&text).ok());
        let other = other.filter(|other| other.job_file == spec.job_file)?;
        Some((id, other.fingerprint.is_empty()))
    };
    let newest = index.find(&spec.name)?.into_iter().take(SAME_NAMES_MAX).find_map(of_document);
    let Some((id, has_several_versions)) = newest else { return Ok(None) };
    let folder = home.job_folder(&id);
    if !folder.is_dir() || home.is_running(&id)? {
        return Ok(None);
    }
    let result = std::fs::read(folder.join("result.json")).ok();
    let result = result.and_then(|result| serde_json::from_slice::<JobResult>(&result).ok());
    let finished = result.filter(|result| result.state != JobState::Canceled);
    if finished.is_some() && !spec.allow_reuse {
        return Ok(None);
    }
    let found = match read(&folder) {
        Some(earlier) => now
            .differences(&earlier, RunPeriod { has_finished: finished.is_some(), ..ran(&folder) }),
        None => vec![Difference::Version],
    };
    let has_succeeded = finished
        .as_ref()
        .map(|result| result.state == JobState::Completed && result.mini_batches.failed == 0);
    let reason = match (has_succeeded, found.is_empty()) {
        (None, false) => NewJobReason::Unfinished(found),
        (Some(true), false) => NewJobReason::Completed(found),
        (Some(true), true) if has_several_versions => NewJobReason::SeveralVersions,
        (Some(false), _) => NewJobReason::Failed(found),
        _ => return Ok(None),
    };
    Ok(Some(Notice::NewJob { earlier: id, reason }))
}

/// Returns the time in which a job ran: from its first write to the last change of its objects.
fn ran(folder: &Path) -> RunPeriod {
    let nanoseconds = |time: SystemTime| {
        time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
    };
    let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let from = modified(&folder.join(FILE)).map_or(0, nanoseconds);
    let ended = modified(&folder.join("result.json"));
    let last = match ended {
        Some(ended) => Some(ended),
        None => {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            // A process that only looks at a job locks it as well.
            entries
                .filter(|entry| entry.file_name() != "lock")
                .filter_map(|entry| modified(&entry.path()))
                .max()
                .map(|last| last + LAST_WRITES)
        }
    };
    RunPeriod { from, to: last.map_or(from, nanoseconds), has_finished: false }
}
