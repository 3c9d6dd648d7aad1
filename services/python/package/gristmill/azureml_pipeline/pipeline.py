"""Pipelines of ``ParallelRunStep``, and their runs, which are jobs."""

import os
import shutil
import sys

from gristmill.api.errors import GristmillError
from gristmill.api.keywords import checked, nearest
from gristmill.api.parallel_run_step import ParallelRunStep
from gristmill.azureml_core.consumption import DatasetConsumptionConfig
from gristmill.azureml_core.unsupported import unsupported
from gristmill.azureml_pipeline.data import Output
from gristmill.azureml_pipeline.python_script_step import PythonScriptStep
from gristmill.azureml_pipeline.refused import NO_SERVICE, refused

STEPS = (ParallelRunStep, PythonScriptStep)
STATES = {"Completed": "Finished", "Failed": "Failed", "Canceled": "Canceled", "Queued": "NotStarted"}
"""States of a run by those of a job; the others are Running."""


class Pipeline:
    """Steps in the order of their inputs."""

    @checked
    def __init__(
        self,
        workspace=None,
        steps=(),
        description=None,
        default_datastore=None,
        default_source_directory=None,
        resolve_closure=True,
    ):
        self.workspace = workspace
        self.description = description
        self.steps = _in_order([*_flat(steps)])

    def validate(self):
        """Returns no problems, because the constructors have checked the steps."""
        return []

    def publish(self, *_, **__):
        """Raises an error that names the alternative."""
        raise refused("Pipeline.publish", NO_SERVICE)

    def submit(self, experiment_name="local", pipeline_parameters=None, regenerate_outputs=False, **_):
        """Starts the pipeline, and returns its run, once all steps but the last one have ended."""
        return submit(self.steps, pipeline_parameters, fresh=regenerate_outputs)


def submit(steps, pipeline_parameters=None, fresh=False):
    """Runs steps one after another, and returns as soon as the last one has an id."""
    values = dict(pipeline_parameters or {})
    known = {name for step in steps for name in step.job_parameters()}
    for name in values:
        if name not in known:
            raise ValueError(f"no step has a pipeline parameter {name}: {nearest(name, known)}")
    runs = []
    for step in steps:
        if runs:
            runs[-1].job.wait()
            runs[-1].register()
        own = {name: value for name, value in values.items() if name in step.job_parameters()}
        runs.append(StepRun(step, step.submit(fresh=fresh, pipeline_parameters=own)))
    return PipelineRun(runs)


def submit_to_experiment(config, **settings):
    """Starts the argument of ``Experiment.submit``: a pipeline or a step."""
    if isinstance(config, STEPS):
        config = Pipeline(steps=[config])
    if not isinstance(config, Pipeline):
        raise TypeError(
            f"submit takes a Pipeline, a ParallelRunStep or a PythonScriptStep here, not a {type(config).__name__}"
        )
    return config.submit(
        pipeline_parameters=settings.get("pipeline_parameters"),
        regenerate_outputs=settings.get("regenerate_outputs") or False,
    )


class _Run:
    def __init__(self, job):
        self.job = job
        """The job, as ``gristmill.attach`` returns it."""
        self.id = job.id

    def get_status(self):
        """Returns NotStarted, Running, Finished, Failed or Canceled."""
        self.register()
        return STATES.get(self.job.state, "Running")

    @property
    def status(self):
        """The status, as ``get_status`` returns it."""
        return self.get_status()

    def wait_for_completion(self, show_output=True, timeout_seconds=None, raise_on_error=True):
        """Waits for the end, and returns the status.

        Raises ``JobFailed`` for a failed job, unless ``raise_on_error`` is false.
        """
        # The SDK's own default.
        limit = None if timeout_seconds in (None, sys.maxsize) else timeout_seconds
        try:
            self.job.wait(timeout=limit, progress=show_output)
        except GristmillError:
            if raise_on_error:
                raise
        return self.get_status()

    def register(self):
        """Registers the outputs of a completed step on this machine, if they ask for it."""

    def cancel(self):
        """Stops the job. Its committed results stay."""
        self.job.cancel()

    def get_details(self):
        """Returns the known details of the job."""
        return {"runId": self.id, "status": self.get_status(), **self.job.status}

    def get_portal_url(self):
        """Returns the folder of the logs: there is no portal."""
        return self.job.status["logs"]

    def __getattr__(self, name):
        has = ", ".join(sorted(one for one in dir(self) if not one.startswith("_")))
        raise unsupported(f"{type(self).__name__}.{name}", instead=f"the run has {has}")

    def __repr__(self):
        return f"<{type(self).__name__} {self.job!r}>"

    def _repr_html_(self):
        return self.job._repr_html_()


class StepRun(_Run):
    """The run of a step."""

    def __init__(self, step, job):
        super().__init__(job)
        self.name = step.name
        self._outputs = step.writes()
        self._are_registered = False

    def register(self):
        """Registers the outputs of a completed step on this machine, if they ask for it."""
        outputs = [output for output in self._outputs if isinstance(output, Output)]
        if not outputs or self._are_registered or self.job.state != "Completed":
            return
        for output in outputs:
            output.step_completed()
        self._are_registered = True

    def get_output_data(self, name=None):
        """Returns an output, which ``download`` copies."""
        known = self._outputs_by_name()
        name = next(iter(known), None) if name is None else name
        if name not in known:
            raise ValueError(f"step {self.name} has no output {name}: {nearest(str(name), known)}")
        output = known[name]
        named = getattr(output, "name", self.name)
        if not hasattr(output, "path"):
            return StepOutput(named, os.fspath(output), f"azureml/{self.id}/{named}")
        return StepOutput(named, output.path, output.relative_path(self.id))

    get_output = get_output_data

    def _outputs_by_name(self):
        # A path has no name of its own.
        known = {getattr(output, "name", self.name): output for output in self._outputs}
        for output in self._outputs:
            for alias in ("output_name", "pipeline_output_name"):
                if getattr(output, alias, None) is not None:
                    known.setdefault(getattr(output, alias), output)
        return known

    def get_stdout_log(self):
        """Returns the text that the script printed."""
        return self.job.logs("user/stdout")

    def get_job_log(self):
        """Returns the log of the engine's report."""
        return self.job.logs("job_result.txt")


class StepOutput:
    """The output of a step."""

    def __init__(self, name, path, path_on_datastore):
        self.name = name
        self.path = path
        self.path_on_datastore = path_on_datastore

    def download(self, local_path, overwrite=None, show_progress=None):
        """Copies the folder to its ``path_on_datastore`` below ``local_path``, and returns the number of files."""
        if "://" in self.path:
            raise GristmillError(f"{self.path} is in a store: copy it with the store's own command")
        shutil.copytree(self.path, os.path.join(local_path, self.path_on_datastore), dirs_exist_ok=True)
        return sum(len(files) for _, _, files in os.walk(self.path))

    def get_port_data_reference(self):
        """Returns it."""
        return self


class PipelineRun(_Run):
    """The run of a pipeline: that of its last step."""

    def __init__(self, runs):
        super().__init__(runs[-1].job)
        self._runs = runs

    def register(self):
        """Registers the outputs of every step."""
        for run in self._runs:
            run.register()

    def publish_pipeline(self, *_, **__):
        """Raises an error that names the alternative."""
        raise refused("PipelineRun.publish_pipeline", NO_SERVICE)

    def get_pipeline_output(self, pipeline_output_name):
        """Returns the output of a step, which ``download`` copies."""
        owners = {name: run for run in self._runs for name in run._outputs_by_name()}
        if pipeline_output_name not in owners:
            raise ValueError(f"no step has an output {pipeline_output_name}: {nearest(pipeline_output_name, owners)}")
        return owners[pipeline_output_name].get_output_data(pipeline_output_name)

    def get_steps(self):
        """Iterates over the runs of the steps."""
        return iter(self._runs)

    def find_step_run(self, name):
        """Returns the runs of the step of this name."""
        return [run for run in self._runs if run.name == name]

    def get_children(self):
        """Iterates over the runs of the steps."""
        return iter(self._runs)


def _flat(steps):
    for step in steps if isinstance(steps, (list, tuple)) else [steps]:
        if isinstance(step, (list, tuple)):
            yield from _flat(step)
        elif isinstance(step, STEPS):
            yield step
        elif isinstance(step, StepSequence):
            yield from _flat(step.steps)
        else:
            raise TypeError(
                f"a pipeline holds steps of the kinds ParallelRunStep and PythonScriptStep here, not a "
                f"{type(step).__name__}"
            )


class StepSequence:
    """Steps, each after the one before."""

    def __init__(self, steps=None):
        self.steps = list(steps or [])
        for before, after in zip(self.steps, self.steps[1:], strict=False):
            for step in after if isinstance(after, (list, tuple)) else [after]:
                for earlier in before if isinstance(before, (list, tuple)) else [before]:
                    step.run_after(earlier)


def _in_order(steps):
    """Returns steps after those whose outputs they read."""
    if not steps:
        raise ValueError("steps is empty: pass a ParallelRunStep")
    producers = {_identity(output): step for step in steps for output in step.writes()}
    ordered = []
    underway = []

    def add(step):
        if step in ordered:
            return
        if step in underway:
            raise ValueError(f"step {step.name} depends on itself: {', '.join(one.name for one in underway)}")
        underway.append(step)
        for value in step.reads():
            producer = producers.get(_identity(value))
            if producer is not None:
                add(producer)
        for earlier in step.after:
            if earlier in steps:
                add(earlier)
        underway.remove(step)
        ordered.append(step)

    for step in steps:
        add(step)
    return ordered


def _identity(value):
    """Returns an identity that an output shares with the tables that are read from it and with inputs by name."""
    value = value.dataset if isinstance(value, DatasetConsumptionConfig) else value
    return id(value.folder if isinstance(value, Output) else value)
