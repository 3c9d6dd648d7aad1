"""Turns datasets, outputs, environments and compute targets of steps into keys and values of a job file.

Objects of SDKs are recognised by their methods, not by their class, because their packages may be absent:

- a dataset has ``job_input()``: the keys of one input of a job file, without its name, and ``script_path()``: the path
  for a script that reads it as a whole;
- an environment has ``python_of_job()``, or ``conda_file``;
- an output has ``folder_for(step)``.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from gristmill.api import command
from gristmill.api import inputs as given
from gristmill.api.errors import GristmillError, warn
from gristmill.api.inputs import absolute


class Step(Protocol):
    """A job as an object of an SDK of Azure ML: a ``ParallelRunStep``, or the result of ``parallel_run_function``."""

    @property
    def name(self) -> str | None:
        """The name of the job; ``None``: it takes that of the step."""
        ...

    def job_parameters(self) -> set[str]:
        """Returns the names of its pipeline parameters."""
        ...

    def job_target(self) -> str | None:
        """Returns the compute target that it names."""
        ...

    def job_document(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns its job file or component.

        :param values: those of its pipeline parameters, by name.
        """
        ...


def home() -> Path:
    """Returns the folder of jobs, models and functions."""
    return Path(os.environ.get("GRISTMILL_HOME") or Path.home() / ".gristmill").absolute()


def text_of(document: dict[str, Any], sort_keys: bool = False) -> str:
    """Returns the text of a job file."""
    for key, value in document.items():
        try:
            json.dumps(value, default=plain)
        except (TypeError, ValueError):
            raise TypeError(f"{key}: {value!r} cannot be part of a job file") from None
    # JSON escapes some characters as a pair, which YAML rejects.
    return json.dumps(document, default=plain, sort_keys=sort_keys, ensure_ascii=False)


def plain(value: Any) -> Any:
    """Returns a path as text, and a number of NumPy as one of Python."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(type(value).__name__)


def input_of(value: Any, label: str) -> dict[str, Any]:
    """Returns the keys of one input of a job file, without its name.

    :param value: a path, pattern or URL, a list of them, a dataset, a DataFrame or an Arrow table.
    :param label: the input in messages.
    """
    if hasattr(value, "job_input"):
        return dict(value.job_input())
    paths = None if isinstance(value, Mapping) else given.path_inputs(value)
    if paths is not None:
        return {"type": "tabular" if given.looks_tabular(paths) else "file", "paths": paths[0]["paths"]}
    if given.is_table(value):
        return {"type": "tabular", "paths": [written(value, None, None)]}
    raise TypeError(
        f"{label} is a {type(value).__module__}.{type(value).__name__}, which names no files here: pass a path, "
        "pattern or URL, a list of them, a DataFrame or an Arrow table"
    )


def written(value: Any, mini_batch_size: int | str | None, taker: str | None) -> str:
    """Writes a table or a column once, below the home folder, and returns the path of the file.

    :param taker: as in ``inputs.stored_table``.
    """
    table = given.stored_table(value, taker)
    rows = given.rows_each(int(table.num_rows), int(table.nbytes), mini_batch_size)
    path = home() / "functions" / "inputs" / f"{given.fingerprint(table)}-{rows}.parquet"
    given.write_table(table, path, rows)
    return str(path)


def written_objects(values: list[Any], mini_batch_size: int | str | None) -> tuple[str, int, bool]:
    """Writes a list of objects once, below the home folder, and returns the path of the file, the number of objects
    in a mini-batch, and whether classes travel with them."""
    lines, same, with_classes = given.lines_of(values)
    path = home() / "functions" / "inputs" / f"{same}.jsonl"
    given.write_lines(lines, path)
    return str(path), given.rows_each(len(lines), sum(map(len, lines)), mini_batch_size), with_classes


def path_of(value: Any, label: str) -> str:
    """Returns the only path of an input that is not divided into mini-batches; for a dataset, the path for a script."""
    script_path = getattr(getattr(value, "dataset", value), "script_path", None)
    if script_path is not None:
        return str(script_path())
    paths = input_of(value, label)["paths"]
    if len(paths) != 1:
        raise ValueError(f"{label} has {len(paths)} paths, and needs one: a file, a folder or a URL")
    return str(paths[0])


def environment_of(value: Any) -> str | None:
    """Returns a job file's ``environment``. ``None``: the interpreter of this process, with a warning if an environment
    was named."""
    if value is None:
        return None
    if isinstance(value, (str, os.PathLike)) and not os.fspath(value).startswith("azureml:"):
        return str(os.fspath(value))
    python_of_job = getattr(value, "python_of_job", None)
    if python_of_job is not None:
        path: str | None = python_of_job()
        if path is not None:
            return path
    conda = value.get("conda_file") if isinstance(value, Mapping) else getattr(value, "conda_file", None)
    if isinstance(conda, (str, os.PathLike)):
        return absolute(conda)
    if isinstance(conda, Mapping):
        return _conda_file(conda)
    name = value.get("name") if isinstance(value, Mapping) else getattr(value, "name", None) or value
    warn(
        f"environment {name} is not created here, and {sys.executable} runs the script: pass an interpreter, a "
        "requirements file or a conda file as `environment` to replace it"
    )
    return None


def variables_of(environment: Any) -> dict[str, str]:
    """Returns the variables that an environment sets."""
    found = getattr(environment, "environment_variables", None)
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, Mapping) else {}


def _conda_file(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, indent=2, sort_keys=True)
    path = home() / "functions" / "environments" / f"{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def target_of(value: Any) -> str | None:
    """Returns the compute target of this name in ``gristmill.toml``; without one, ``None``, with a warning."""
    name = value if value is None or isinstance(value, str) else getattr(value, "name", None)
    if name in (None, "local"):
        return None
    try:
        lines = command.call("target", "list").splitlines()[1:]
    except GristmillError as error:
        if "there is no gristmill.toml" not in str(error):
            raise
        lines = []
    if name in [line.split()[0] for line in lines]:
        return str(name)
    warn(
        f"gristmill.toml has no compute target {name}, so the job runs on this machine: add [targets.{name}], or pass "
        "target= to submit"
    )
    return None
