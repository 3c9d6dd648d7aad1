"""The engine from Python: start jobs, follow them, read their results.

Every call runs the ``gristmill`` command as a child process, so a job behaves as on the command line, keeps running
when the interpreter that started it ends, and can be attached to again.
"""

from gristmill.api.errors import GristmillError, InvalidJob, JobBusy, JobCanceled, JobFailed
from gristmill.api.inputs import Items
from gristmill.api.job import Job
from gristmill.api.start import attach, jobs, run, submit

__all__ = [
    "GristmillError",
    "InvalidJob",
    "Items",
    "Job",
    "JobBusy",
    "JobCanceled",
    "JobFailed",
    "attach",
    "jobs",
    "run",
    "submit",
]
