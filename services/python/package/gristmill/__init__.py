"""Gristmill: runs a function or an entry script over mini-batches, in parallel, to one output.

    import gristmill

    def run(df):
        df["score"] = model.predict(df)
        return df

    job = gristmill.run(run, inputs="data/*.csv")
    job.to_pandas()

``run`` and ``submit`` start jobs, ``attach`` and ``jobs`` find them again; each is documented with ``help``. Entry
scripts do not import this package; what they may import is ``azureml_user.parallel_run``. An agent starts
``bootstrap.py`` with its own interpreter, so that any environment of the user serves, with nothing installed in it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gristmill.api import (
        GristmillError,
        InvalidJob,
        Items,
        Job,
        JobBusy,
        JobCanceled,
        JobFailed,
        attach,
        jobs,
        run,
        submit,
    )

__version__ = "0.1.0"

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


def __getattr__(name: str) -> object:
    # A worker process imports this package too, and needs none of it.
    if name not in __all__:
        raise AttributeError(f"module 'gristmill' has no attribute {name!r}")
    from gristmill import api

    value = globals()[name] = getattr(api, name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
