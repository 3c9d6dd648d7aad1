"""Pipelines: a document whose steps are jobs, one after another."""

from __future__ import annotations

import json
from typing import Any

from gristmill.api.child import Child
from gristmill.api.job import Job
from gristmill.api.step_values import home


class Steps(Job):
    """The jobs of a pipeline. It stands for the step that runs, or ran last: ``output``, ``logs`` and others are those
    of this step's job, and ``steps`` has the jobs by the names of their steps.

    >>> pipeline = gristmill.submit("pipeline.yml")        # doctest: +SKIP
    >>> pipeline.wait().steps["rate"].output               # doctest: +SKIP
    '/data/pipeline-output/rate/ratings.txt'
    """

    _child: Child

    def __init__(self, arguments: list[str], child: Child, target: str | None) -> None:
        super().__init__(child.job_id(), target, child)
        self._arguments = arguments
        self._elsewhere = target
        self._stand_for(self.id)
        self._warn(child.warnings())

    @property
    def steps(self) -> dict[str, Job]:
        """The jobs of the steps that have begun, by the names of the steps."""
        self._refresh()
        if self._result is None:
            begun = self._child.steps()
        else:
            begun = {step["step"]: step["result"]["job_id"] for step in self._result["steps"]}
        return {name: Job(job_id, self._place_of(job_id)) for name, job_id in begun.items()}

    @property
    def status(self) -> dict[str, Any]:
        """The status of the job of the current step."""
        self._refresh()
        status: dict[str, Any] = json.loads(self._call("status", self.id, "--json"))
        return status

    @property
    def result(self) -> dict[str, Any] | None:
        """The result of the last step, with the results of all steps as ``steps``; ``None`` before the end."""
        self._refresh()
        return self._result

    @property
    def state(self) -> str:
        """Running, Completed, Failed or Canceled."""
        return str(self.result["state"]) if self.result else "Running"

    def retry(self, progress: bool = True, **of_one_step: Any) -> Job:
        """Runs the pipeline again: completed steps return their results, and the others continue."""
        if of_one_step:
            raise TypeError(f"{', '.join(of_one_step)}: for the job of one step, as in steps[NAME].retry(...)")
        self._result = None
        self._child = Child(self._arguments)
        return self.wait(progress=progress)

    def _has_ended(self, bar: Any) -> bool:
        self._refresh()
        if self._result is None and bar is not None and bar.is_due():
            bar.show(self.status)
        return self._result is not None

    def _refresh(self) -> None:
        """Updates the current step, and the result once the pipeline has ended."""
        if self._result is not None:
            return
        if self._child.has_ended():
            self._result = self._child.result()
            self._stand_for(self._result["job_id"])
        elif begun := self._child.steps():
            self._stand_for(list(begun.values())[-1])

    def _stand_for(self, job_id: str) -> None:
        self.id, self.target = job_id, self._place_of(job_id)

    def _place_of(self, job_id: str) -> str | None:
        """Returns the target of a step: commands run on this machine."""
        return None if (home() / "jobs" / job_id).is_dir() else self._elsewhere
