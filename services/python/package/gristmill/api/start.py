"""``run`` and ``submit``, and how to find jobs again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gristmill import contract
from gristmill.api import command
from gristmill.api import inputs as given
from gristmill.api.child import Child
from gristmill.api.errors import GristmillError, InvalidJob, JobBusy, at_call
from gristmill.api.inputs import absolute
from gristmill.api.job import Job
from gristmill.api.keywords import nearest
from gristmill.api.step_values import Step, home, written


def run(
    function: Callable[..., Any] | str | os.PathLike[str] | Step,
    inputs: Any = None,
    *,
    init: Callable[[], Any] | None = None,
    output: str | os.PathLike[str] | None = None,
    mini_batch_size: int | str | None = None,
    name: str | None = None,
    target: str | None = None,
    progress: bool = True,
    fresh: bool = False,
    **settings: Any,
) -> Job:
    """Runs a function over every mini-batch of the inputs, in parallel, and waits for the end.

    The function travels to worker processes with its closure, its globals and your own modules. Each call gets one
    mini-batch and returns a list or a table, usually with one row for each item.

    :param function: a function, the path of an entry script (``.py``), of a job file or of a document of Azure ML
        (``.yaml``), a ``ParallelRunStep`` or a parallel job. The type hint of the first parameter of a function
        chooses what it gets: ``list[str]`` (paths), ``pandas.DataFrame``, ``pyarrow.Table`` or ``polars.DataFrame``.
        Without a hint, the inputs choose: a table in memory arrives as it is, files of tables as pandas DataFrames,
        other files as a list of paths, and a list as a list of its objects. A parameter named ``state`` gets the result
        of ``init``, and one named ``context`` the context of the mini-batch. The function may be ``async``.
    :param inputs: a path, folder, pattern or URL, a list of them, or a mapping of names to paths; a DataFrame or Arrow
        table; or a list of any objects that pickle (texts as ``gristmill.Items``). For a document of Azure ML, one
        path, or a mapping of its inputs to paths and values.
    :param init: a function without arguments, which each process calls once, before its first mini-batch.
    :param output: a file that ends in ``.parquet``, ``.csv`` or ``.jsonl``. By default a Parquet file below
        ``~/.gristmill``, or in the store of a target on other machines, which ``job.to_pandas()`` reads.
    :param mini_batch_size: files (``500``), rows (``500``, ``"500 rows"``) or bytes of text tables (``"10MB"``). By
        default 10 files, 1 MB of text tables, the row groups of Parquet files, and four mini-batches for each core of
        inputs in memory.
    :param name: the name of the job: 3 to 32 lower-case letters, digits and dashes. By default that of the function.
    :param target: a compute target of ``gristmill.toml``. By default this machine.
    :param progress: show a progress bar.
    :param fresh: start over. Otherwise the same call continues an interrupted job, or returns the earlier result.
    :param settings: any other key of the job file, such as ``process_count_per_node=4``, ``run_max_try=3``,
        ``run_invocation_timeout=600`` (seconds) or ``error_threshold=10`` (failed items that the job accepts; -1:
        any number). By default a function gets one try for each mini-batch, and the first failed item fails the job;
        rows that are missing from its result count as failed items. And ``gpus``: GPUs for each process, or a part of
        one, such as ``0.5``, which two processes share.
    :return: the job, completed.
    :raises InvalidJob: the job is invalid, and nothing was started. The message names each problem.
    :raises JobFailed: the job failed. The message has the cause, and the traceback of the first error.
    :raises TypeError: the function or the inputs cannot be used. The message says why.

    >>> import gristmill
    >>> def double(numbers: list) -> list:
    ...     return [2 * number for number in numbers]
    >>> gristmill.run(double, inputs=[1, 2, 3], progress=False).to_pandas()["value"].tolist()
    [2, 4, 6]

    A table, and a state that each process makes once:

    >>> import pandas
    >>> def load():
    ...     return {"factor": 10}
    >>> def scale(table: pandas.DataFrame, state):
    ...     return table.assign(y=table["x"] * state["factor"])
    >>> job = gristmill.run(scale, inputs=pandas.DataFrame({"x": [1, 2, 3]}), init=load, progress=False)
    >>> job.to_pandas()["y"].tolist()
    [10, 20, 30]
    """
    try:
        started = _start(function, inputs, init, output, mini_batch_size, name, target, fresh, settings)
        return started.wait(progress=progress)
    except Exception as error:
        raise at_call(error) from error.__cause__


def submit(
    function: Callable[..., Any] | str | os.PathLike[str] | Step,
    inputs: Any = None,
    *,
    init: Callable[[], Any] | None = None,
    output: str | os.PathLike[str] | None = None,
    mini_batch_size: int | str | None = None,
    name: str | None = None,
    target: str | None = None,
    fresh: bool = False,
    **settings: Any,
) -> Job:
    """Starts a job, and returns as soon as it has an id. The job continues when this interpreter ends.

    The parameters are those of ``run``. A job of a compute target is planned and published when the call returns.

    :return: the job, which ``wait`` or ``await`` follows to its end.
    :raises InvalidJob: the job is invalid, and nothing was started. The message names each problem.

    >>> import gristmill
    >>> job = gristmill.submit(lambda numbers: [2 * number for number in numbers], inputs=[1, 2, 3])
    >>> job.wait(progress=False).to_pandas()["value"].tolist()
    [2, 4, 6]
    """
    try:
        return _start(function, inputs, init, output, mini_batch_size, name, target, fresh, settings)
    except Exception as error:
        raise at_call(error) from error.__cause__


def attach(job: str, target: str | None = None) -> Job:
    """Returns a job by its id, the beginning of its id, or its name, also one that another process started.

    :raises GristmillError: there is no such job.

    >>> import gristmill
    >>> job = gristmill.run(lambda numbers: numbers, inputs=[1, 2], name="found", progress=False)
    >>> gristmill.attach("found").state
    'Completed'
    """
    flags = [] if target is None else ["--target", target]
    try:
        found = json.loads(command.call("status", job, "--json", *flags))
    except GristmillError as error:
        raise at_call(error) from None
    return Job(found["job_id"], target)


def jobs(target: str | None = None, *, name: str | None = None, state: str | None = None, limit: int = 50) -> list[Job]:
    """Returns jobs, newest first.

    :param name: only those of this name.
    :param state: only those in this state: ``running``, ``failed``, …
    :param limit: at most this many; 0: all.

    >>> import gristmill
    >>> job = gristmill.run(lambda numbers: numbers, inputs=[1, 2], name="listed", progress=False)
    >>> [one.id == job.id for one in gristmill.jobs(name="listed", state="completed")]
    [True]
    """
    flags = ["--limit", str(limit)]
    for flag, value in (("--target", target), ("--name", name), ("--state", state)):
        flags += [] if value is None else [flag, value]
    return [Job(one["job_id"], target) for one in json.loads(command.call("jobs", "--json", *flags))]


def _start(
    what: Any,
    inputs: Any,
    init: Any,
    output: Any,
    mini_batch_size: Any,
    name: str | None,
    target: str | None,
    fresh: bool,
    settings: dict[str, Any],
) -> Job:
    if os.environ.get(contract.PROCESS_VARIABLE):
        raise RuntimeError(
            "this is a worker process of a job, and it must not start another job: "
            "put the call below `if __name__ == '__main__':`"
        )
    if "gpus" in settings:
        from gristmill.api.gpus import with_gpu_keys

        settings = with_gpu_keys(settings)
    if hasattr(what, "job_document"):
        if not (inputs is init is output is None):
            raise TypeError(f"{what.name} says what its inputs, its script and its output are: pass only settings")
        return _start_step(what, {**settings, "mini_batch_size": mini_batch_size, "name": name}, target, fresh)
    if output is not None:
        settings = {**settings, **_output(os.fspath(output))}
    if isinstance(what, (str, os.PathLike)) and os.fspath(what).endswith((".yaml", ".yml", ".json")):
        return _start_file(os.fspath(what), inputs, init, mini_batch_size, name, target, fresh, settings)
    try:
        document = _document(what, inputs, init, mini_batch_size, name, settings)
    except OSError as error:
        if not str(error.filename or "").startswith(str(home())):
            raise
        cause = error.strerror or error
        raise GristmillError(
            f"{error.filename} cannot be written: {cause}; set GRISTMILL_HOME to a folder that can be"
        ) from None
    arguments = _arguments("-", target, fresh)
    try:
        return Job._begun(Child(arguments, _json(document)), target)
    except JobBusy as busy:
        # This folder belongs to one function, input and settings.
        if busy.job_id is None or fresh or Path(document.get("output", "")).parent != home() / "functions" / "outputs":
            raise
        return Job(busy.job_id, note=f"job {busy.job_id} is running already: this call follows it")


def _start_step(step: Step, settings: dict[str, Any], target: str | None, fresh: bool) -> Job:
    """Starts a ``ParallelRunStep`` or a parallel job; settings replace its own."""
    values = dict(settings.pop("pipeline_parameters", None) or {})
    known = step.job_parameters()
    if unknown := set(values) - known:
        raise ValueError(f"{step.name} has no pipeline parameter {min(unknown)}: {nearest(min(unknown), known)}")
    document = step.job_document(values)
    replaced = {key: value for key, value in settings.items() if value is not None}
    target = step.job_target() if target is None else target
    arguments = _arguments("-", target, fresh)
    if own := getattr(step, "job_settings", None):
        # Its document is not a job file, so it gets keys of a job file as on a command line.
        for key, value in (own() | replaced).items():
            arguments += ["--set", f"{key}={json.dumps(value, default=_plain, ensure_ascii=False)}"]
    else:
        document |= replaced
    return Job._begun(Child(arguments, _json(document)), target)


def _arguments(job_file: str, target: str | None, fresh: bool) -> list[str]:
    if target is not None:
        return ["enqueue", job_file, "--target", target, *(["--fresh"] if fresh else [])]
    return ["run", job_file, *(["--fresh"] if fresh else [])]


def _json(document: dict[str, Any], sort_keys: bool = False) -> str:
    """Returns the text of a job file."""
    for key, value in document.items():
        try:
            json.dumps(value, default=_plain)
        except (TypeError, ValueError):
            raise TypeError(f"{key}: {value!r} cannot be part of a job file") from None
    # JSON escapes some characters as a pair, which YAML rejects.
    return json.dumps(document, default=_plain, sort_keys=sort_keys, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Returns a path as text, and a number of NumPy as one of Python."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(type(value).__name__)


def _start_file(
    path: str,
    inputs: Any,
    init: Any,
    mini_batch_size: Any,
    name: str | None,
    target: str | None,
    fresh: bool,
    settings: dict[str, Any],
) -> Job:
    own = f"{path} says what its inputs and its script are: pass only settings that replace its own"
    if init is not None:
        raise TypeError(own)
    replaced = {**settings, "mini_batch_size": mini_batch_size, "name": name}
    arguments = _arguments(path, target, fresh)
    for key, value in replaced.items():
        if value is not None:
            text = _plain(value) if isinstance(value, os.PathLike) else value
            arguments += ["--set", f"{key}={text if isinstance(text, str) else json.dumps(text, default=_plain)}"]
    for value in _inputs_of_document(inputs):
        arguments += ["--input", value]
    child = Child(arguments)
    try:
        return _steps(arguments, child, target) if child.has_steps() else Job._begun(child, target)
    except KeyboardInterrupt:
        child.interrupt()
        raise
    except InvalidJob as error:
        if inputs is not None and "this is a job file" in str(error):
            raise TypeError(own) from None
        raise


def _steps(arguments: list[str], child: Child, target: str | None) -> Job:
    from gristmill.api.steps import Steps

    job = Steps(arguments, child, target)
    job._warn(child.warnings())
    return job


def _inputs_of_document(inputs: Any) -> list[str]:
    """Returns the values of ``--input`` for a document of Azure ML."""
    if isinstance(inputs, Mapping):
        return [
            f"{name}={os.fspath(value) if hasattr(value, '__fspath__') else value}" for name, value in inputs.items()
        ]
    if inputs is None or isinstance(inputs, (str, os.PathLike)):
        return [] if inputs is None else [os.fspath(inputs)]
    raise TypeError("inputs of a document are one path, or a mapping of names to paths and values")


def _document(
    what: Any, inputs: Any, init: Any, mini_batch_size: Any, name: str | None, settings: dict[str, Any]
) -> dict[str, Any]:
    """Returns the job file of a call."""
    from gristmill.api import function

    if inputs is None:
        meant = next((f" as inputs, not as {name}" for name in ("input", "input_data", "data") if name in settings), "")
        raise TypeError(f"inputs is missing: pass a path, a table or a list{meant}")
    own = home() / "functions"
    is_script = isinstance(what, (str, os.PathLike))
    if not is_script:
        function.check(what, init)
    elif init is not None:
        raise TypeError(f"{os.fspath(what)} has its own init()")
    wanted = None if is_script else function.argument_of(what)
    document: dict[str, Any] = {}
    paths = given.path_inputs(inputs)
    if paths is not None:
        tabular = given.looks_tabular(paths) if wanted is None else wanted != "list"
        argument = wanted or ("pandas" if tabular else "list")
        document["inputs"] = [{**one, "type": "tabular" if tabular else "file"} for one in paths]
        if tabular and not is_script:
            # A function takes tables as its author knows them from `pandas.read_csv`.
            document["inputs"] = [{"types": "pandas", **one} for one in document["inputs"]]
        if mini_batch_size is not None:
            of_rows = tabular and hasattr(mini_batch_size, "__index__")
            document["mini_batch_size"] = f"{mini_batch_size} rows" if of_rows else mini_batch_size
    else:
        _check_argument(what, wanted, inputs)
        argument = (wanted or given.library_of(inputs)) if given.is_table(inputs) else "items"
        taker = None if is_script or argument == "items" else argument
        if argument == "pandas" and given.library_of(inputs) == "pandas":
            argument = "frame"
        document["inputs"] = [{"name": "data", "type": "tabular", "path": written(inputs, mini_batch_size, taker)}]
    if is_script:
        script = Path(absolute(what))
        document |= {"source_directory": str(script.parent), "entry_script": script.name}
        document["name"] = name or function.job_name(script.stem)
    else:
        folder = function.pack(what, init, argument, own)
        document |= {"source_directory": str(folder), "entry_script": "entry.py"}
        document["name"] = name or function.job_name(function.name_of(what))
    document |= settings
    if "output" not in document and document.get("output_action") != "summary_only":
        same = hashlib.blake2b(_json(document, sort_keys=True).encode(), digest_size=8).hexdigest()
        output = str(own / "outputs" / f"{document['name']}-{same}")
        defaults = {"output": output, "output_format": "native", "append_row_file_name": "output.parquet"}
        document = defaults | document
    document.setdefault("output_action", "append_row")
    if not is_script:
        # A function that fails should not cost three tries before its author hears of it, nor end as completed.
        document.setdefault("error_threshold", 0)
        document.setdefault("run_max_try", 1)
    return document


def _check_argument(what: Any, wanted: str | None, inputs: Any) -> None:
    """Fails if a function or script that takes one kind of mini-batches gets inputs in memory of another."""
    from gristmill.api import function

    given.check_kind(inputs)
    if given.is_table(inputs):
        if wanted == "list":
            raise TypeError(
                f"{function.name_of(what)} takes a list of paths, and inputs is a table: give it a DataFrame"
            )
    elif isinstance(what, (str, os.PathLike)):
        raise TypeError(f"{os.fspath(what)} takes paths or rows, and inputs is a list of objects: pass a function")
    elif wanted not in (None, "list"):
        raise TypeError(
            f"{function.name_of(what)} takes a table, and inputs is a list of objects: pass pandas.DataFrame(inputs)"
        )


def _output(path: str) -> dict[str, Any]:
    """Returns the keys of an output file, a path or a URL."""
    folder, name = os.path.split(path)
    if os.path.splitext(name)[1] not in (".parquet", ".csv", ".jsonl"):
        raise ValueError(f"output: {path} must end in .parquet, .csv or .jsonl")
    return {"output": absolute(folder), "append_row_file_name": name, "output_format": "native"}
