"""The job file of a call: the arguments of ``run``, ``map`` and ``submit``, as keys and values."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

from gristmill.api import command
from gristmill.api import function as functions
from gristmill.api import inputs as given
from gristmill.api.inputs import absolute
from gristmill.api.step_values import home, text_of, written, written_objects
from gristmill.contract import CONCURRENCY
from gristmill.missing import NULLABLE

OTHER_WORDS = {
    **dict.fromkeys(("num_proc", "n_jobs", "max_workers", "num_workers", "workers", "processes"), "concurrency"),
    **dict.fromkeys(("batch_size", "chunksize"), "mini_batch_size"),
    **dict.fromkeys(("num_gpus",), "gpus"),
}
"""Keywords of other libraries, and their names here."""
OF_FILES = {
    **{name: name for name in ("sep", "names", "usecols", "dtype", "skiprows", "nrows", "encoding", "parse_dates")},
    **{name: name for name in ("header", "dayfirst", "partition_format", "support_multi_line", "on_type_mismatch")},
    **{"delimiter": "sep", "columns": "usecols", "types": "dtype", "dtypes": "dtype", "skip_rows": "skiprows"},
}
"""Keywords that belong to the functions that describe files, and their names there."""
TAKERS = {"records": None, "frame_rows": "pandas"}
"""Forms whose inputs ``stored_table`` writes as it does for another form."""
LONG_SECONDS = 86_400
"""Limit of a call of a function on this machine, in seconds: a day."""
TARGET_SECONDS = 900
"""Limit of a call of a function on a compute target, in seconds."""
UNFINISHED = ("Interrupted", "Canceled", "Running")
JOBS_MAX = 20
"""The newest jobs of a name that may be the one that a call continues."""
OVERHEAD_SECONDS = 5
"""Seconds for the work around a call of a function: reading its mini-batch, and the first import of pandas."""


def document_of(
    what: Any,
    inputs: Any,
    *,
    each: bool,
    init: Any,
    mini_batch_size: Any,
    name: str | None,
    target: str | None,
    settings: dict[str, Any],
    fresh: bool = False,
) -> dict[str, Any]:
    """Returns the job file of a call.

    :param what: a function, or the path of an entry script.
    :param each: the function gets one item at a time.
    :param fresh: it continues no earlier job.
    """
    if inputs is None:
        meant = next((f" as inputs, not as {name}" for name in ("input", "input_data", "data") if name in settings), "")
        raise TypeError(f"inputs is missing: pass a path, a table or a list{meant}")
    for keyword in settings:
        if keyword in OTHER_WORDS:
            raise TypeError(f"{keyword}: gristmill calls it {OTHER_WORDS[keyword]}")
        if keyword in OF_FILES:
            raise TypeError(
                f"{keyword} says how files are read: pass inputs=gristmill.read_csv(…, {OF_FILES[keyword]}=…), or "
                "read_json or read_parquet"
            )
    is_script = isinstance(what, (str, os.PathLike))
    if not is_script:
        functions.check(what, init, each)
    elif init is not None or each:
        raise TypeError(f"{os.fspath(what)}: an entry script has its own {'run()' if each else 'init()'}")
    wanted = None if is_script or each else functions.argument_of(what)
    if wanted == "item":
        raise TypeError(
            f"{functions.name_of(what)} takes one item, and run passes it a mini-batch: call "
            f"gristmill.map({functions.name_of(what)}, …)"
        )
    document: dict[str, Any] = {}
    options: list[str] = []
    form: dict[str, Any] = {"each": each, "working_folder": os.getcwd() if target is None else None}
    with_classes = False
    paths = given.path_inputs(inputs)
    if paths is not None:
        form["dtypes"] = _dtypes_of(paths)
        document["inputs"], is_table = _of_paths(what, paths, wanted, is_script)
        for name, dtype in form["dtypes"].items() if is_script else ():
            if dtype not in ("object", *NULLABLE):  # A script gets text as objects anyway.
                raise TypeError(
                    f"dtype of {name!r}: an entry script gets no {dtype}: pass the type without missing values"
                )
        form["argument"] = (wanted or "pandas") if is_table else "list"
        form["of_lines"] = is_table and given.have_format(paths, "jsonl")
        form["of_parquet"] = is_table and given.have_format(paths, "parquet")
        if each and is_table:
            form["argument"] = "lines" if form["of_lines"] else "records"
        if mini_batch_size is not None:
            of_rows = is_table and hasattr(mini_batch_size, "__index__")
            document["mini_batch_size"] = f"{mini_batch_size} rows" if of_rows else mini_batch_size
    else:
        inputs = given.collected(inputs)
        form |= _form_of(what, inputs, wanted, each, is_script)
        is_table = form["argument"] in functions.TABLES
        taker = None if is_script else TAKERS.get(form["argument"], form["argument"])
        if form["argument"] == "pandas" and given.library_of(inputs) == "pandas":
            form["argument"] = "frame"
        if is_script and not len(inputs):
            raise ValueError("inputs is empty: there is nothing to run on")
        if form["argument"] == "items":
            path, rows, with_classes = written_objects(inputs, mini_batch_size)
            document["inputs"] = [{"name": "data", "type": "tabular", "format": "jsonl", "path": path}]
            document["mini_batch_size"] = f"{rows} rows"
        else:
            with_classes = given.may_hold_objects(inputs)
            document["inputs"] = [{"name": "data", "type": "tabular", "path": written(inputs, mini_batch_size, taker)}]
    if is_script:
        script = Path(absolute(what))
        document |= {"source_directory": str(script.parent), "entry_script": script.name}
        document["name"] = name or functions.job_name(script.stem)
    else:
        concurrency = settings.pop("concurrency", None)
        if concurrency is not None and (not hasattr(concurrency, "__index__") or concurrency < 1):
            raise ValueError(f"concurrency is the number of calls at a time, from 1, not {concurrency!r}")
        if functions.is_async(what) and each:
            form["concurrency"] = concurrency or CONCURRENCY
        elif concurrency is not None:
            settings.setdefault("process_count_per_node", concurrency)
        folder = functions.pack(what, init, form, home() / "functions", with_classes=with_classes)
        document |= {"source_directory": str(folder), "entry_script": "entry.py"}
        document["name"] = name or functions.job_name(functions.name_of(what))
        # A mini-batch of a table may mean more than its rows; only the function knows, so it is not divided.
        if is_table and not each:
            settings.setdefault("isolate", "off")
    document |= settings
    if "output" not in document and document.get("output_action") != "summary_only":
        document = _with_output(document) if is_script or target or fresh else _of_unfinished_job(document)
    document.setdefault("output_action", "append_row")
    if not is_script:
        # The author of a function that fails should see the error after one try, and the job should fail.
        document.setdefault("error_threshold", 0)
        document.setdefault("run_max_try", 1)
        # The function decides the columns of an empty result.
        document.setdefault("run_without_rows", True)
        # A call may take long, and the waiting user can stop it. Some queues cannot lease a message for a day.
        document.setdefault("run_invocation_timeout", LONG_SECONDS if target is None else TARGET_SECONDS)
        if "run_invocation_timeout" in settings:
            # The engine adds 30 s for the work around a run, which is too much beside a timeout of one second.
            options += ["--task_overhead_timeout", str(OVERHEAD_SECONDS)]
    if options:
        arguments = document.get("arguments") or []
        document["arguments"] = [*(shlex.split(arguments) if isinstance(arguments, str) else arguments), *options]
    return document


def _with_output(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a document with an output of its own."""
    same = hashlib.blake2b(text_of(document, sort_keys=True).encode(), digest_size=8).hexdigest()
    first = str(home() / "functions" / "outputs" / f"{document['name']}-{same}")
    taken = _outputs_of_several_versions(document["name"]) if os.path.isdir(first) else set()
    others = (f"{first}-{number}" for number in itertools.count(2))
    output = next(folder for folder in itertools.chain([first], others) if folder not in taken)
    defaults = {"output": output, "output_format": "native", "append_row_file_name": "output.parquet"}
    return defaults | document


def _outputs_of_several_versions(name: str) -> set[str]:
    """Returns the folders with rows of jobs of this name that another version of their function has completed: no call
    gets these as its result, and a new job must not overwrite them."""
    found = set()
    for spec in (home() / "jobs").glob(f"{name}-*/spec.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            job = json.loads(spec.read_text())
            if job["name"] == name and not job["fingerprint"]:
                found.add(job["output"]["folder"])
    return found


def _of_unfinished_job(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a document with an output: that of a job that has not ended, if this is the same call but for the content
    of what its function names. The job continues, as it would have without the interruption."""
    now = _with_output(document)
    earlier = {}
    for folder in functions.of_same_code(Path(document["source_directory"])):
        other = _with_output({**document, "source_directory": str(folder)})
        earlier[other["output"]] = other
    if not earlier:
        return now
    for job in json.loads(command.call("jobs", "--json", "--name", document["name"], "--limit", str(JOBS_MAX))):
        with suppress(OSError, ValueError, KeyError):
            spec = json.loads((home() / "jobs" / job["job_id"] / "spec.json").read_text())
            output = spec["output"]["folder"]
            if output == now["output"]:
                return now
            if output in earlier:
                if job["state"] not in UNFINISHED:
                    return now
                Path(spec["source_directory"], functions.CONTINUED).touch()
                return earlier[output]
    return now


def output_of(path: str) -> dict[str, Any]:
    """Returns the keys of an output file, a path or a URL."""
    folder, name = os.path.split(path)
    if os.path.splitext(name)[1] not in (".parquet", ".csv", ".jsonl"):
        raise ValueError(f"output: {path} must end in .parquet, .csv or .jsonl")
    return {"output": absolute(folder), "append_row_file_name": name, "output_format": "native"}


def _dtypes_of(paths: list[dict[str, Any]]) -> dict[str, str]:
    """Takes the dtypes of pandas from the inputs, and returns them by column."""
    dtypes: dict[str, str] = {}
    for one in paths:
        for name, dtype in one.pop("dtypes", {}).items():
            if dtypes.setdefault(name, dtype) != dtype:
                raise ValueError(f"dtype of {name!r} is {dtypes[name]} in one input and {dtype} in another: pass one")
    return dtypes


def _of_paths(
    what: Any, paths: list[dict[str, Any]], wanted: str | None, is_script: bool
) -> tuple[list[dict[str, Any]], bool]:
    """Returns the inputs of a job file, and whether they are tables."""
    described = {one["type"] for one in paths if "type" in one}
    if len(described) > 1:
        raise TypeError("inputs are tables and files of any content: a function gets one kind, so pass one of them")
    if described:
        is_table = "tabular" in described
        if wanted is not None and (wanted != "list") != is_table:
            kinds = ("a list of paths", "tables") if is_table else ("a table", "files of any content")
            raise TypeError(f"{functions.name_of(what)} takes {kinds[0]}, and inputs are {kinds[1]}")
    else:
        is_table = given.looks_tabular(paths) if wanted is None else wanted != "list"
    if wanted in ("series", "polars_series", "array"):
        raise TypeError(f"{functions.name_of(what)} takes a column, and inputs are files: let it take a DataFrame")
    inputs = [{**one, "type": "tabular" if is_table else "file"} for one in paths]
    if is_table and not is_script:
        # A function gets tables as its author knows them from `pandas.read_csv`.
        inputs = [{"types": "pandas", **one} for one in inputs]
    return inputs, is_table


def _form_of(what: Any, inputs: Any, wanted: str | None, each: bool, is_script: bool) -> dict[str, Any]:
    """Returns the form in which a function, or a script, gets inputs in memory. Fails if it takes another kind of
    mini-batches."""
    name = os.fspath(what) if is_script else functions.name_of(what)
    if given.is_table(inputs):
        if each:
            return {"argument": "frame_rows" if given.library_of(inputs) == "pandas" else "records"}
        if wanted in ("list", "series", "polars_series", "array"):
            kind = "a list" if wanted == "list" else "a column"
            raise TypeError(f"{name} takes {kind}, and inputs is a table: let it take a DataFrame")
        return {"argument": wanted or given.library_of(inputs)}
    column = given.column_form(inputs)
    if column is None or each:
        if is_script:
            raise TypeError(f"{name} takes paths or rows, and inputs is a list of objects: pass a function")
        if wanted not in (None, "list"):
            raise TypeError(f"{name} takes a table, and inputs is a list of objects: pass pandas.DataFrame(inputs)")
        return {"argument": "items"}
    if is_script:
        raise TypeError(f"{name} takes paths or rows, and inputs is a column: pass a table")
    if wanted not in (None, column["argument"]):
        raise TypeError(f"{name} takes another kind of mini-batches than inputs, a {type(inputs).__name__}")
    return column
