//! Runs a document with several steps: one after another, each of them a job that continues, or is reused, like any other.

use job_file::{Problem, Steps};
use protocol::{JobResult, JobState};
use storage::StoreOptions;

use crate::targets::Target;
use crate::{Document, Engine, Error, Event, Events, FollowEnd, Result, StopRequest};

/// How one step ended.
#[derive(Clone, Debug)]
pub struct StepResult {
    /// Name of the step in the document.
    pub step: String,
    /// The result of its job.
    pub result: JobResult,
    /// Whether it ran on the compute target.
    pub was_elsewhere: bool,
}

/// Warnings and notes of a document whose steps have no mistakes.
#[derive(Clone, Debug, Default)]
pub struct CheckedSteps {
    /// Settings that work, but probably not as intended.
    pub warnings: Vec<Problem>,
    /// Decisions about the inputs that may surprise users.
    pub notes: Vec<String>,
}

impl Engine {
    /// Reads a document with several steps. `None`: a job file, or a document with one step, for [`Engine::read`].
    pub fn steps(&self, document: &Document, events: &Events) -> Result<Option<Steps>> {
        let steps = self.document_steps(document)?.filter(|steps| steps.steps().len() > 1);
        if let Some(steps) = &steps {
            events.doubts(&steps.warnings);
        }
        Ok(steps)
    }

    /// Reads a document of Azure ML, whatever its number of steps. `None`: a job file.
    pub fn document_steps(&self, document: &Document) -> Result<Option<Steps>> {
        let context = self.context(document);
        Steps::read(&document.path, &document.text, &document.overrides, &context)
            .map_err(Error::Invalid)
    }

    /// Checks every step of a document, as far as this is possible before the first of them has run. `options`: for the
    /// stores of inputs.
    pub fn check_steps(
        &self,
        steps: &Steps,
        document: &Document,
        options: &StoreOptions,
        events: &Events,
    ) -> Result<CheckedSteps> {
        let context = self.context(document);
        let (mut problems, mut all) = (Vec::new(), CheckedSteps::default());
        for (index, step) in steps.steps().iter().enumerate() {
            let checked =
                steps.load(index, true, &context).map_err(Error::Invalid).and_then(|mut parsed| {
                    events.doubts(&parsed.warnings);
                    if step.needs.is_empty() {
                        self.check(&mut parsed, options, true, events)?.finish()?;
                    }
                    all.warnings.extend(parsed.warnings);
                    all.notes.extend(parsed.spec.notes);
                    Ok(())
                });
            match checked {
                Ok(()) => {}
                Err(Error::Invalid(found)) => problems.extend(found),
                Err(error) => return Err(error),
            }
        }
        if problems.is_empty() { Ok(all) } else { Err(Error::Invalid(problems)) }
    }

    /// Runs the steps of a document in their order, until one does not complete or the command is stopped. Parallel steps
    /// run on `target`, if there is one, and commands on this machine.
    pub async fn run_steps(
        &self,
        steps: &Steps,
        document: &Document,
        target: Option<&Target>,
        fresh: bool,
        stop: &StopRequest,
        events: &Events,
    ) -> Result<Vec<StepResult>> {
        let (here, elsewhere) = (Document { compute_target: None, ..document.clone() }, document);
        let options = target.map_or_else(StoreOptions::default, Target::store_options);
        let checked = if target.is_some() { elsewhere } else { &here };
        self.check_steps(steps, checked, &options, events)?;
        // The output of steps is data, and not part of the scripts beside it.
        let marked = std::fs::create_dir_all(&steps.outputs)
            .and_then(|()| storage::snapshot::mark(&steps.outputs));
        marked
            .map_err(|error| anyhow::anyhow!("write into {}: {error}", steps.outputs.display()))?;
        let mut results = Vec::new();
        let count = steps.steps().len();
        for (index, step) in steps.steps().iter().enumerate() {
            events.send(Event::Step { name: step.name.clone(), number: index + 1, count });
            let target = target.filter(|_| !step.is_command);
            let context = self.context(if target.is_some() { elsewhere } else { &here });
            let jobs: Vec<&str> =
                results.iter().map(|ended: &StepResult| ended.result.job_id.as_str()).collect();
            let mut parsed = steps.load_after(&jobs, &context).map_err(Error::Invalid)?;
            let result = match target {
                None => {
                    let check = self.check(&mut parsed, &StoreOptions::default(), true, events)?;
                    self.run(parsed, check, fresh, stop, events).await?
                }
                Some(target) => {
                    self.check(&mut parsed, &target.store_options(), true, events)?.finish()?;
                    match self.run_on(parsed, target, fresh, stop, events).await? {
                        FollowEnd::Ended(result) => *result,
                        FollowEnd::Stopped | FollowEnd::Interrupted => return Ok(results),
                    }
                }
            };
            let has_completed = result.state == JobState::Completed;
            results.push(StepResult {
                step: step.name.clone(),
                result,
                was_elsewhere: target.is_some(),
            });
            if !has_completed {
                break;
            }
        }
        Ok(results)
    }
}
