"""Gristmill: runs a function or an entry script over mini-batches, in parallel, to one output.

    import gristmill

    def run(df):
        df["score"] = model.predict(df)
        return df

    job = gristmill.run(run, inputs="data/*.csv")
    job.to_pandas()

``run`` and ``submit`` start jobs, ``attach`` and ``jobs`` find them again; each is documented with ``help``. Entry
scripts do not import this package, but may import ``azureml_user.parallel_run``. An agent starts ``bootstrap.py`` with
the interpreter of the job, so that any environment of the user works without an installation.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gristmill.api.described import files, items, read_csv, read_json, read_parquet
    from gristmill.api.errors import GristmillError, GristmillWarning, InvalidJob, JobBusy
    from gristmill.api.job import Job, JobCanceled, JobFailed
    from gristmill.api.output import read
    from gristmill.api.parallel_job import Parallel, RunFunction, parallel_run_function
    from gristmill.api.parallel_run_step import ParallelRunConfig, ParallelRunStep, PipelineParameter
    from gristmill.api.start import attach, jobs, map, run, submit

__version__ = "0.1.0"

__all__ = [
    "GristmillError",
    "GristmillWarning",
    "InvalidJob",
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
    "files",
    "items",
    "jobs",
    "map",
    "parallel_run_function",
    "read",
    "read_csv",
    "read_json",
    "read_parquet",
    "run",
    "submit",
]


_MODULES = {
    "described": ("files", "items", "read_csv", "read_json", "read_parquet"),
    "errors": ("GristmillError", "GristmillWarning", "InvalidJob", "JobBusy"),
    "job": ("Job", "JobCanceled", "JobFailed"),
    "output": ("read",),
    "parallel_job": ("Parallel", "RunFunction", "parallel_run_function"),
    "parallel_run_step": ("ParallelRunConfig", "ParallelRunStep", "PipelineParameter"),
    "start": ("attach", "jobs", "map", "run", "submit"),
}


def __getattr__(name: str) -> object:
    # A worker process imports this package too, but uses none of these names.
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module 'gristmill' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"gristmill.api.{module}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


class _StandIns:
    """Finds modules of ``azureml`` that the environment lacks. Imports the rules once a script needs one."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> object:
        rules = "azureml._stand_ins"
        if not name.startswith("azureml.") or name == rules:
            return None
        from importlib import import_module

        try:
            return import_module(rules).find_spec(name)
        except ImportError:  # The environment has its own `azureml`, which is not a namespace package.
            return None


def _offer_stand_ins() -> None:
    """Lets ``from azureml.pipeline.steps import ParallelRunStep`` find the stand-in, and likewise ``import mltable``,
    unless an SDK is installed."""
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "shims"))
    sys.meta_path.append(_StandIns)  # type: ignore[arg-type]


# A worker process (contract.PROCESS_VARIABLE) sets its own search path.
if "GRISTMILL_PROCESS" not in os.environ:
    _offer_stand_ins()
