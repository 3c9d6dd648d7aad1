"""``run``, ``map`` and ``submit`` start jobs; ``attach`` and ``jobs`` find them again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gristmill import contract
from gristmill.api import command
from gristmill.api.child import Child
from gristmill.api.errors import GristmillError, InvalidJob, JobBusy, at_call
from gristmill.api.job import Job
from gristmill.api.keywords import nearest
from gristmill.api.step_values import Step, home, plain, text_of

ISOLATE = (
    'All rows of a failed mini-batch failed with it. With isolate="items" they run again in smaller pieces, and only '
    "those that fail alone are rejected, as many as error_threshold allows; a function that treats rows together, as a "
    "mean does, gets other results then."
)

KEYWORDS = ("inputs", "init", "output", "mini_batch_size", "name", "target", "progress", "verbose", "fresh")
"""The keywords of a call that are not keys of a job file, or mean something else there."""


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
    verbose: bool = True,
    fresh: bool = False,
    **settings: Any,
) -> Job:
    """Runs a function over every mini-batch of the inputs, in parallel, and waits for the end.

    The function travels to worker processes with its closure, its globals and your own modules. Each call gets one
    mini-batch and returns a list or a table, with any number of rows; a generator yields rows, or tables.

    :param function: a function, the path of an entry script (``.py``), of a job file or of a document of Azure ML
        (``.yaml``), a ``ParallelRunStep`` or a parallel job. The type hint of the first parameter of a function
        chooses what it gets: ``list[str]`` (paths), ``pandas.DataFrame``, ``pyarrow.Table`` or ``polars.DataFrame``.
        Without a hint, the inputs choose: a table or column in memory arrives as it is, files of tables as pandas
        DataFrames, other files as a list of paths, and a list as a list of its objects. A parameter named ``state``
        gets the result of ``init``, and one named ``context`` the context of the mini-batch. The function may be
        ``async``.
    :param inputs: files: a path, folder, pattern or URL, a list of them, a mapping of names to paths, or the result of
        ``read_csv``, ``read_json``, ``read_parquet`` or ``files``. In memory: a DataFrame, a Series, an array, an Arrow
        or Polars table, or a list or generator of any objects that pickle (texts as ``gristmill.items``). For a
        document of Azure ML, one path, or a mapping of its inputs to paths and values.
    :param init: a function without arguments, which each process calls once, before its first mini-batch.
    :param output: a file that ends in ``.parquet``, ``.csv`` or ``.jsonl``. By default a Parquet file below
        ``~/.gristmill``, or in the store of a target on other machines, which ``job.to_pandas()`` reads.
    :param mini_batch_size: files (``500``), rows (``500``, ``"500 rows"``) or bytes of text tables (``"10MB"``). By
        default 10 files, 1 MB of text tables, the row groups of Parquet files, and four mini-batches for each core of
        inputs in memory.
    :param name: the name of the job: 3 to 32 lower-case letters, digits and dashes. By default that of the function.
    :param target: a compute target of ``gristmill.toml``. By default this machine.
    :param progress: show a progress bar.
    :param verbose: show what the function prints, and its warnings; at most 200 lines. ``job.logs("user")`` has all.
    :param fresh: start over. Otherwise the same call continues an interrupted job, or returns the earlier result.
    :param settings: any other key of the job file, such as ``concurrency=4`` (processes), ``run_max_try=3``,
        ``run_invocation_timeout=600`` (seconds), ``error_threshold=10`` (failed items that the job accepts; -1: any
        number) or ``isolate="items"`` (run the rows of a failed mini-batch again in smaller pieces, to find those that
        fail). By default a function gets one try for each mini-batch, and the first failure fails the job. And
        ``gpus``: GPUs for each process, or a part of one, such as ``0.5``, which two processes share.
    :return: the job, completed.
    :raises InvalidJob: the job is invalid, and nothing was started. The message names each problem.
    :raises JobFailed: the job failed. The message has the cause, and the traceback of the first error.
    :raises TypeError: the function or the inputs cannot be used. The message has the reason.

    >>> import gristmill
    >>> def double(numbers: list) -> list:
    ...     return [2 * number for number in numbers]
    >>> gristmill.run(double, inputs=[1, 2, 3], progress=False).to_pandas()["value"].tolist()
    [2, 4, 6]

    A table, and a state that each process creates once:

    >>> import pandas
    >>> def load():
    ...     return {"factor": 10}
    >>> def scale(table: pandas.DataFrame, state):
    ...     return table.assign(y=table["x"] * state["factor"])
    >>> job = gristmill.run(scale, inputs=pandas.DataFrame({"x": [1, 2, 3]}), init=load, progress=False)
    >>> job.to_pandas()["y"].tolist()
    [10, 20, 30]
    """
    call = Call(function, inputs, False, init, output, mini_batch_size, name, target, fresh, settings)
    return _to_its_end(call, progress, verbose)


def map(
    function: Callable[..., Any],
    inputs: Any,
    *,
    init: Callable[[], Any] | None = None,
    output: str | os.PathLike[str] | None = None,
    mini_batch_size: int | str | None = None,
    name: str | None = None,
    target: str | None = None,
    progress: bool = True,
    verbose: bool = True,
    fresh: bool = False,
    **settings: Any,
) -> Job:
    """Runs a function over every item of the inputs, one item at a time, and waits for the end.

    The function gets the path of a file, the row of a table as a ``dict``, or an object of a list. It returns a value,
    or a ``dict`` with the columns of a row; ``None`` adds no row. An item that fails is rejected alone: the others of
    its mini-batch keep their rows. Each process runs ``concurrency`` calls of an ``async`` function at a time.

    The parameters are those of ``run``.

    >>> import gristmill
    >>> words = gristmill.items(["a", "bcd"])
    >>> job = gristmill.map(lambda word: {"word": word, "letters": len(word)}, words, progress=False)
    >>> job.to_pandas()["letters"].tolist()
    [1, 3]
    """
    call = Call(function, inputs, True, init, output, mini_batch_size, name, target, fresh, settings)
    return _to_its_end(call, progress, verbose)


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
        return _start(Call(function, inputs, False, init, output, mini_batch_size, name, target, fresh, settings))
    except Exception as error:
        raise at_call(error) from error.__cause__


def attach(job: str, target: str | None = None) -> Job:
    """Returns a job by its id, the beginning of its id, or its name, even if another process started it.

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


class Call(NamedTuple):
    """The arguments of a call."""

    function: Any
    """A function, a path, or a step."""
    inputs: Any
    each: bool
    """Whether the function gets one item at a time."""
    init: Any
    output: Any
    mini_batch_size: Any
    name: str | None
    target: str | None
    fresh: bool
    settings: dict[str, Any]


def _to_its_end(call: Call, progress: bool, verbose: bool) -> Job:
    try:
        return _start(call).wait(progress=progress, verbose=verbose)
    except Exception as error:
        raise at_call(error) from error.__cause__


def _start(call: Call) -> Job:
    if os.environ.get(contract.PROCESS_VARIABLE):
        raise RuntimeError(
            "this is a worker process of a job, which must not start another one: a function cannot call gristmill, "
            "and a script must call it below `if __name__ == '__main__':`"
        )
    if "gpus" in call.settings:
        from gristmill.api.gpus import with_gpu_keys

        call = call._replace(settings=with_gpu_keys(call.settings))
    function, target, fresh = call.function, call.target, call.fresh
    own = {"mini_batch_size": call.mini_batch_size, "name": call.name}
    if hasattr(function, "job_document"):
        if not (call.inputs is call.init is call.output is None):
            raise TypeError(f"{function.name} defines its inputs, script and output: pass only settings")
        return _start_step(function, {**call.settings, **own}, target, fresh)
    from gristmill.api.document import document_of, output_of
    from gristmill.api.function import name_of
    from gristmill.api.wording import Wording

    settings = dict(call.settings)
    if call.output is not None:
        settings |= output_of(os.fspath(call.output))
    if isinstance(function, (str, os.PathLike)) and os.fspath(function).endswith((".yaml", ".yml", ".json")):
        return _start_file(call, settings)
    try:
        document = document_of(
            function, call.inputs, each=call.each, init=call.init, target=target, settings=settings, fresh=fresh, **own
        )
    except OSError as error:
        if not str(error.filename or "").startswith(str(home())):
            raise
        cause = error.strerror or error
        raise GristmillError(
            f"{error.filename} cannot be written: {cause}; set GRISTMILL_HOME to a writable folder"
        ) from None
    arguments = _arguments("-", target, fresh)
    say = Wording(f"{name_of(function)}()") if callable(function) else str
    try:
        job = Job._begun(Child(arguments, text_of(document)), target, say)
    except InvalidJob as error:
        _check_keywords(error, "map" if call.each else "run")
        texts = isinstance(call.inputs, list) and "does not exist" in str(error)
        hint = "\nA list of texts is a list of paths: pass gristmill.items([…]) for texts." if texts else ""
        raise InvalidJob(say(str(error)) + hint, error.problems) from None
    except JobBusy as busy:
        if busy.job_id is None:
            raise
        # This folder belongs to one function, input and settings.
        if not fresh and Path(document.get("output", "")).parent == home() / "functions" / "outputs":
            return Job(busy.job_id, note=f"job {busy.job_id} is already running: this call follows it")
        follow = f'gristmill.attach("{busy.job_id}").wait() follows it'
        raise JobBusy(f"{busy}; {follow}", busy.job_id) from None
    if document.get("isolate") == "off" and "isolate" not in call.settings:
        job._advice = ISOLATE
    return job


def _check_keywords(error: InvalidJob, called: str) -> None:
    """Fails if a key that no job file has is a misspelt keyword of a call."""
    import difflib

    for problem in error.problems:
        if str(problem.get("message")).startswith("unknown key"):
            name = str(problem.get("field"))
            for close in difflib.get_close_matches(name, KEYWORDS, n=1, cutoff=0.75):
                raise TypeError(f"{called} has no keyword {name}: did you mean {close}?") from None


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
            arguments += ["--set", f"{key}={json.dumps(value, default=plain, ensure_ascii=False)}"]
    else:
        document |= replaced
    try:
        job = Job._begun(Child(arguments, text_of(document)), target)
    except InvalidJob as error:
        config = getattr(step, "parallel_run_config", None) or getattr(step, "runconfig", None)
        name = getattr(getattr(config, "environment", None), "name", None)
        if name is None or not any(one.get("field") == "environment" for one in error.problems):
            raise
        # A driver has no option `--set`.
        line = f'"{name}" = "PATH"'
        raise InvalidJob(
            f"{error}\nThe line {line} below [azureml.environments] in gristmill.toml replaces the environment {name}: "
            "PATH is an interpreter, a virtual environment or a requirements file.",
            error.problems,
        ) from None
    # The id of the job may be in the paths of its outputs.
    for output in getattr(step, "writes", list)():
        if hasattr(output, "written_by"):
            output.written_by(job.id)
    return job


def _arguments(job_file: str, target: str | None, fresh: bool) -> list[str]:
    if target is not None:
        return ["enqueue", job_file, "--target", target, *(["--fresh"] if fresh else [])]
    return ["run", job_file, *(["--fresh"] if fresh else [])]


def _start_file(call: Call, settings: dict[str, Any]) -> Job:
    path = os.fspath(call.function)
    own = f"{path} defines its inputs and its script: pass only settings that replace its own"
    if call.init is not None or call.each:
        raise TypeError(own)
    replaced = {**settings, "mini_batch_size": call.mini_batch_size, "name": call.name}
    arguments = _arguments(path, call.target, call.fresh)
    for key, value in replaced.items():
        if value is not None:
            text = plain(value) if isinstance(value, os.PathLike) else value
            arguments += ["--set", f"{key}={text if isinstance(text, str) else json.dumps(text, default=plain)}"]
    for value in _inputs_of_document(call.inputs):
        arguments += ["--input", value]
    child = Child(arguments)
    try:
        if not child.has_steps():
            return Job._begun(child, call.target)
        from gristmill.api.steps import Steps

        return Steps(arguments, child, call.target)
    except KeyboardInterrupt:
        child.interrupt()
        raise
    except InvalidJob as error:
        if call.inputs is not None and "this is a job file" in str(error):
            raise TypeError(own) from None
        raise


def _inputs_of_document(inputs: Any) -> list[str]:
    """Returns the values of ``--input`` for a document of Azure ML."""
    if isinstance(inputs, Mapping):
        return [
            f"{name}={os.fspath(value) if hasattr(value, '__fspath__') else value}" for name, value in inputs.items()
        ]
    if inputs is None or isinstance(inputs, (str, os.PathLike)):
        return [] if inputs is None else [os.fspath(inputs)]
    raise TypeError("inputs of a document are one path, or a mapping of names to paths and values")
