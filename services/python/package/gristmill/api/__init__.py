"""The engine from Python: start jobs, follow them, read their results.

Every call runs the ``gristmill`` command as a child process, so a job behaves as on the command line, keeps running
when the interpreter that started it ends, and can be attached to again.
"""

from gristmill.api.errors import GristmillError, InvalidJob, JobBusy, JobCanceled, JobFailed
from gristmill.api.inputs import Items
from gristmill.api.job import Job
from gristmill.api.parallel_job import Parallel, RunFunction, parallel_run_function
from gristmill.api.parallel_run_step import ParallelRunConfig, ParallelRunStep, PipelineParameter
from gristmill.api.start import attach, jobs, run, submit

__all__ = [
    "GristmillError",
    "InvalidJob",
    "Items",
    "Job",
    "JobBusy",
    "JobCanceled",
    "JobFailed",
    "Parallel",
    "ParallelRunConfig",
    "ParallelRunStep",
    "PipelineParameter",
    "RunFunction",
    "attach",
    "jobs",
    "parallel_run_function",
    "run",
    "submit",
]
