//! Documents with several steps: `gristmill run`, `enqueue` and `validate` of a pipeline.

use std::path::PathBuf;

use engine::targets::{Target, TargetRef};
use engine::{CheckedSteps, Document, Events, StepResult};
use job_file::Steps;
use portal::OwnJobs;
use protocol::JobState;
use serde_json::json;
use storage::StoreOptions;

use crate::portal::serve;
use crate::summary::summary;
use crate::{Exit, JobFileArguments, Settings, Show, TargetFlags, stop_on_signals};

/// The steps of a document that have run.
pub struct CompletedSteps {
    results: Vec<StepResult>,
    count: usize,
    target: TargetRef,
    /// The folder of outputs for which the document names no other.
    outputs: PathBuf,
}

/// A document with several steps.
pub struct StepsDocument {
    document: Document,
    steps: Steps,
}

impl StepsDocument {
    /// Reads a document. `None`: it has only one step, or is a job file.
    pub fn read(
        job: &JobFileArguments,
        flags: Option<&TargetFlags>,
        settings: &Settings,
        events: &Events,
    ) -> engine::Result<Option<Self>> {
        let document = job.document(flags, settings)?;
        Ok(settings.engine.steps(&document, events)?.map(|steps| Self { document, steps }))
    }

    /// Runs the steps. `shown`: a portal shows these jobs meanwhile.
    pub async fn run(
        self,
        target: Option<Target>,
        fresh: bool,
        settings: &Settings,
        events: &Events,
        shown: Option<&OwnJobs>,
    ) -> engine::Result<CompletedSteps> {
        let Self { document, steps } = self;
        if let Some(own_jobs) = shown {
            if target.is_some() && steps.steps().iter().any(|step| step.is_command) {
                say!(
                    note,
                    "the page shows the steps on the compute target; `gristmill portal` shows commands, which run on this machine"
                );
            }
            serve(target.clone(), settings, own_jobs.clone(), true)?;
        }
        let (stop, _signals) = stop_on_signals();
        let results = settings
            .engine
            .run_steps(&steps, &document, target.as_ref(), fresh, &stop, events)
            .await?;
        let target = target.map_or(TargetRef::ThisMachine, |target| target.reference());
        Ok(CompletedSteps { results, count: steps.steps().len(), target, outputs: steps.outputs })
    }
}

impl CompletedSteps {
    /// Prints the results of the steps: one JSON object, or a summary of each.
    pub fn report(&self, json: bool) -> Exit {
        let Some(last) = self.results.last() else {
            return Exit::Canceled
                .because("this command was stopped before the first step ended", json);
        };
        if json {
            let steps: Vec<_> = self
                .results
                .iter()
                .map(|ended| json!({ "step": ended.step, "result": ended.result }))
                .collect();
            let object =
                json!({ "state": last.result.state, "steps": steps, "outputs": self.outputs });
            say!(out, "{object}");
        } else {
            for StepResult { step, result, was_elsewhere } in &self.results {
                let here = TargetRef::ThisMachine;
                let reused = if result.reused { ", reused" } else { "" };
                say!(
                    out,
                    "step {step}{reused}\n{}",
                    summary(result, if *was_elsewhere { &self.target } else { &here })
                );
            }
            say!(out, "outputs of the steps: {}", self.outputs.display());
            let left = self.count - self.results.len();
            if left > 0 {
                let stopped = match last.result.state {
                    JobState::Completed => {
                        format!("the command was stopped after step {}", last.step)
                    }
                    _ => format!("step {} did not complete", last.step),
                };
                say!(err, "{stopped}; {left} of {} steps have not run", self.count);
            }
        }
        match last.result.state == JobState::Completed && self.results.len() < self.count {
            true => Exit::NotEnded,
            false => Exit::of(last.result.state),
        }
    }
}

/// Checks a document with several steps. Returns its warnings and notes. `None`: it has only one, or is a job file.
pub async fn validate(
    job: &JobFileArguments,
    settings: &Settings,
) -> engine::Result<Option<CheckedSteps>> {
    Show::during(async |events| {
        let Some(StepsDocument { document, steps }) =
            StepsDocument::read(job, None, settings, events)?
        else {
            return Ok(None);
        };
        let mut checked =
            settings.engine.check_steps(&steps, &document, &StoreOptions::default(), events)?;
        checked.warnings.splice(0..0, steps.warnings);
        Ok(Some(checked))
    })
    .await
}
