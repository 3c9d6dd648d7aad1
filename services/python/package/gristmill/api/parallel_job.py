"""``parallel_run_function`` and ``RunFunction``, with the signatures of the second SDK.

A node is written as a parallel component of Azure ML, which the engine reads like a file: expressions, names of a
workspace, defaults and mistakes have the same meaning in both.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gristmill.api import function
from gristmill.api import inputs as given
from gristmill.api.errors import warn
from gristmill.api.inputs import absolute
from gristmill.api.keywords import checked, nearest
from gristmill.api.step_values import environment_of, input_of, path_of, target_of

if TYPE_CHECKING:
    from gristmill.api.job import Job

REFERENCE = re.compile(r"\s*\$\{\{\s*(?:inputs|outputs)\.([A-Za-z0-9_]+)\s*\}\}\s*")
DATASTORE = re.compile(r"azureml://(?:.*/)?datastores/([^/]+)/paths/")
HALF_WRITTEN = re.compile(r"\$\{(\w+)\}")
"""``${name}``, into which an f-string turns ``${{name}}``."""
AS_THEY_ARE = (
    *("description", "environment_variables", "error_threshold", "input_data", "is_deterministic", "logging_level"),
    *("max_concurrency_per_instance", "mini_batch_error_threshold", "mini_batch_size", "partition_keys"),
)
"""Attributes of a node that are also keys of a component."""


class Fields:
    """Values by name, as attributes and as items. An unknown name is an error that suggests the nearest one."""

    def __init__(self, what: str, values: Mapping[str, Any]) -> None:
        self.__dict__["_what"] = what
        self.__dict__["_values"] = dict(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._values[self._known(name)]

    def __setattr__(self, name: str, value: Any) -> None:
        self._values[self._known(name)] = value

    __getitem__ = __getattr__
    __setitem__ = __setattr__

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __dir__(self) -> list[str]:
        return sorted(self._values)

    def __repr__(self) -> str:
        return f"{self._what}({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    def __deepcopy__(self, memo: Any) -> Fields:
        return Fields(self._what, {name: copy.copy(value) for name, value in self._values.items()})

    def _known(self, name: str) -> str:
        if name not in self._values:
            raise AttributeError(f"{self._what} has no {name}: {nearest(name, self._values)}")
        return name


class RunFunction:
    """The script of a parallel job.

    :param code: the folder of the script.
    :param entry_script: the script with ``init()`` and ``run(mini_batch)``, below ``code``.
    :param program_arguments: its command line; ``${{inputs.NAME}}`` and ``${{outputs.NAME}}`` become paths or values.
    :param model: the path of a model.
    :param append_row_to: ``"${{outputs.NAME}}"``, which gets all results; without it, the script writes its own files.
    :param environment: an interpreter, a requirements file, a conda file, or an object with ``conda_file``.
    :raises TypeError: an unknown keyword; the message has the nearest right one.
    """

    @checked
    def __init__(
        self,
        *,
        code: str | None = None,
        entry_script: str | None = None,
        program_arguments: str | None = None,
        model: str | None = None,
        append_row_to: str | None = None,
        environment: Any = None,
    ) -> None:
        self.code = code
        self.entry_script = entry_script
        self.program_arguments = program_arguments
        self.model = model
        self.append_row_to = append_row_to
        self.environment = environment


class Parallel:
    """A parallel job, as ``parallel_run_function`` returns it. Its attributes can be changed until it is submitted.

    Called with inputs, ``node(data="…")``, it returns a copy with these inputs, as a component does in a pipeline.
    """

    name: str | None
    description: str | None
    compute: str | None
    retry_settings: Any
    environment_variables: dict[str, str]
    logging_level: str | None
    max_concurrency_per_instance: int | None
    error_threshold: int | None
    mini_batch_error_threshold: int | None
    task: Any
    mini_batch_size: str | int | None
    partition_keys: list[str] | None
    input_data: str | None
    inputs: Fields
    outputs: Fields
    resources: Fields
    identity: Any
    is_deterministic: bool
    display_name: str | None
    experiment_name: str | None
    tags: dict[str, str]
    properties: dict[str, str]

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__:
            raise AttributeError(f"a parallel job has no {name}: {nearest(name, self.__dict__)}")
        self.__dict__[name] = value

    def __call__(self, **inputs: Any) -> Parallel:
        """Returns a job with these inputs."""
        made = Parallel(copy.deepcopy({**self.__dict__, "inputs": None}))
        made.inputs = Fields("inputs", dict(self.inputs._values))
        for name, value in inputs.items():
            if name not in self.inputs:
                raise TypeError(f"{self.name or 'a parallel job'} has no input {name}: {nearest(name, self.inputs)}")
            made.inputs[name] = value
        return made

    def __repr__(self) -> str:
        return f"<parallel job {self.name}: {_get(self.task, 'entry_script')}>"

    def submit(self, target: str | None = None, *, fresh: bool = False, **settings: Any) -> Job:
        """Starts the job, and returns as soon as it has an id.

        :param target: a compute target, instead of ``compute``.
        :param fresh: start over. Otherwise the same job continues, or its earlier result is returned.
        :param settings: any key of the job file that replaces its value, such as ``environment="requirements.txt"``.
        :raises InvalidJob: nothing was started; the message names each problem.
        """
        from gristmill.api.start import submit

        return submit(self, target=target, fresh=fresh, **settings)

    def job_parameters(self) -> set[str]:
        """Returns the names of its pipeline parameters: it has inputs instead."""
        return set()

    def job_target(self) -> str | None:
        """Returns the compute target that the job names."""
        return target_of(self.compute)

    def job_document(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the job as a parallel component."""
        if self.task is None:
            raise ValueError("task is missing: pass a RunFunction")
        name = function.job_name(self.name or os.path.splitext(_get(self.task, "entry_script") or "parallel")[0])
        document = {
            "type": "parallel",
            "name": name,
            **{key: getattr(self, key) for key in AS_THEY_ARE},
            "retry_settings": _checked_keys(self.retry_settings, ("max_retries", "timeout"), "retry_settings"),
            "resources": dict(self.resources._values),
            "identity": None if self.identity is None else type(self.identity).__name__,
            "task": {
                "type": "run_function",
                "code": os.fspath(_get(self.task, "code") or "."),
                "entry_script": _get(self.task, "entry_script"),
                "program_arguments": _get(self.task, "program_arguments"),
                "append_row_to": _get(self.task, "append_row_to"),
                "model": _model(_get(self.task, "model")),
                "environment": _environment(_get(self.task, "environment")),
            },
            "inputs": {other: self._input(other) for other in self.inputs},
            "outputs": {other: self._output(other, name) for other in self.outputs},
        }
        return _without_empty(document)

    def job_settings(self) -> dict[str, Any]:
        """Returns keys of the job file for data that no component can name: several paths, tables, data in memory."""
        split = _name_in(self.input_data)
        value = self.inputs._values.get(split)
        path, kind = _path(value), _get(value, "type")
        if value is None or _is_declaration(value):
            return {}
        if not isinstance(path, (str, os.PathLike)):
            return {"inputs": [{"name": split, **input_of(path, f"input {split}")}]}
        one = {"paths": [absolute(path)]}
        if kind is None and not _is_address(path) and not _holds_mltable(path) and given.looks_tabular([one]):
            # As in Azure ML.
            return {"inputs": [{"name": split, "type": "tabular", "on_type_mismatch": "missing", **one}]}
        return {}

    def _input(self, name: str) -> Any:
        value = self.inputs[name]
        is_split = name == _name_in(self.input_data)
        if value is None or _is_declaration(value):
            if is_split:
                raise ValueError(f"input {name} has no path: pass one, node({name}=…)")
            return {"type": _get(value, "type"), "optional": True}
        if _is_literal(value) and not is_split:
            kind = _get(value, "type")
            text = str(value if kind is None else _get(value, "default") or _get(value, "path"))
            return text if kind is None else {"type": kind, "value": text}
        path = _path(value)
        if not isinstance(path, (str, os.PathLike)):
            # `job_settings` has the keys of the job file that replace this input.
            return {"type": "uri_folder", "path": "." if is_split else path_of(path, f"input {name}")}
        kind = _get(value, "type") or ("mltable" if _holds_mltable(path) else "uri_folder")
        return {"type": kind, "path": os.fspath(path), "mode": _get(value, "mode")}

    def _output(self, name: str, job: str) -> dict[str, Any]:
        value = self.outputs[name]
        kind, path = _get(value, "type"), _get(value, "path")
        if path is None:
            is_file = kind == "uri_file" and name != _name_in(_get(self.task, "append_row_to"))
            path = f"outputs/{job}/{name}"
            return {"type": "uri_file", "path": f"{path}/{name}"} if is_file else {"type": "uri_folder", "path": path}
        path = _place(HALF_WRITTEN.sub(r"${{\1}}", os.fspath(path)), name)
        is_file = kind != "uri_folder" and (kind == "uri_file" or os.path.splitext(path)[1] != "")
        return {"type": "uri_file" if is_file else kind, "path": path}


@checked
def parallel_run_function(
    *,
    name: str | None = None,
    description: str | None = None,
    tags: dict[str, str] | None = None,
    properties: dict[str, str] | None = None,
    display_name: str | None = None,
    experiment_name: str | None = None,
    compute: str | None = None,
    retry_settings: Any = None,
    environment_variables: dict[str, str] | None = None,
    logging_level: str | None = None,
    max_concurrency_per_instance: int | None = None,
    error_threshold: int | None = None,
    mini_batch_error_threshold: int | None = None,
    task: RunFunction | None = None,
    mini_batch_size: str | None = None,
    partition_keys: list[str] | None = None,
    input_data: str | None = None,
    inputs: dict[str, Any] | None = None,
    outputs: dict[str, Any] | None = None,
    instance_count: int | None = None,
    instance_type: str | None = None,
    docker_args: str | None = None,
    shm_size: str | None = None,
    identity: Any = None,
    is_deterministic: bool = True,
) -> Parallel:
    """Returns a parallel job, which ``submit`` starts.

    :param name: its name; other characters than letters, digits and dashes become dashes.
    :param compute: a target of ``gristmill.toml``; otherwise this machine.
    :param retry_settings: ``{"max_retries": 2, "timeout": 60}``: tries after the first one, and seconds of one call.
    :param max_concurrency_per_instance: processes of each node.
    :param error_threshold: maximum number of failed items; -1: any number.
    :param mini_batch_error_threshold: maximum number of failed mini-batches; -1: any number.
    :param task: the script, with its folder and arguments.
    :param mini_batch_size: files, or bytes of a table (``"10kb"``).
    :param partition_keys: one mini-batch for each combination of values of these columns; takes precedence.
    :param input_data: ``"${{inputs.NAME}}"``, the input that is cut into mini-batches.
    :param inputs: paths, texts or numbers by name, or objects with ``path`` and ``type``.
    :param outputs: paths by name, or objects with ``path`` and ``type``; without a path, below ``outputs/``.
    :param instance_count: nodes.
    :param is_deterministic: return the result of an earlier equal job.
    :raises TypeError: an unknown keyword; the message has the nearest right one.

    >>> import gristmill, pathlib
    >>> _ = pathlib.Path("score.py").write_text("def run(files): return [len(open(file).read()) for file in files]")
    >>> _ = pathlib.Path("poem.txt").write_text("in Xanadu")
    >>> node = gristmill.parallel_run_function(
    ...     name="count_letters", inputs={"poems": "poem.txt"}, outputs={"counts": None},
    ...     input_data="${{inputs.poems}}", mini_batch_size="5", instance_count=1,
    ...     task=gristmill.RunFunction(code=".", entry_script="score.py", append_row_to="${{outputs.counts}}"))
    >>> node.resources.instance_count = 2
    >>> node.outputs.counts.path = "counts/letters.txt"
    >>> print(open(node.submit().wait(progress=False).output).read().strip())
    9
    """
    values: dict[str, Any] = dict(locals())
    machines = {key: values.pop(key) for key in ("instance_count", "instance_type", "docker_args", "shm_size")}
    values |= {key: dict(values[key] or {}) for key in ("tags", "properties", "environment_variables")}
    made = {key: _as_output(value) for key, value in (outputs or {}).items()}
    values |= {"inputs": Fields("inputs", inputs or {}), "outputs": Fields("outputs", made)}
    return Parallel({**values, "resources": Fields("resources", machines)})


def _get(value: Any, name: str) -> Any:
    """Returns a key of a mapping, or an attribute of an object of an SDK. The columns of a table do not count."""
    if given.is_table(value):
        return None
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _without_empty(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a mapping without empty values, at every depth."""
    inner = {key: _without_empty(value) if isinstance(value, Mapping) else value for key, value in mapping.items()}
    return {key: value for key, value in inner.items() if value not in (None, {}, [])}


def _checked_keys(value: Any, names: tuple[str, ...], what: str) -> dict[str, Any]:
    if isinstance(value, Mapping):
        for name in value:
            if name not in names:
                raise TypeError(f"{what} has no {name}: {nearest(name, names)}")
    return {} if value is None else {name: _get(value, name) for name in names}


def _name_in(expression: Any) -> str | None:
    """Returns the name in a text that is one reference."""
    found = REFERENCE.fullmatch(expression) if isinstance(expression, str) else None
    return None if found is None else found[1]


def _path(value: Any) -> Any:
    """Returns the path of an input: the ``path`` of an object of an SDK, or the value itself."""
    path = _get(value, "path")
    return value if path is None else path


def _is_declaration(value: Any) -> bool:
    """Returns whether a value only declares the type of an input."""
    return _get(value, "type") is not None and _get(value, "path") is None and _get(value, "default") is None


def _is_literal(value: Any) -> bool:
    kind = _get(value, "type")
    if kind is not None:
        return kind in ("string", "integer", "number", "boolean")
    # A text is a path if there is one, or if it looks like one.
    if isinstance(value, str):
        return not (os.path.exists(value) or _is_address(value) or value.startswith((".", "/", "~")))
    return isinstance(value, (int, float, bool))


def _is_address(path: Any) -> bool:
    """Returns whether a path is a URL, or a name in a workspace."""
    text = str(path)
    return "://" in text or text.startswith("azureml:")


def _holds_mltable(path: Any) -> bool:
    return not _is_address(path) and os.path.isfile(os.path.join(absolute(path), "MLTable"))


def _model(value: Any) -> Any:
    path = _path(value)
    if value is None or isinstance(path, (str, os.PathLike)):
        return None if value is None else os.fspath(path)
    return {"name": _get(value, "name"), "version": _get(value, "version")}


def _environment(value: Any) -> str | None:
    """Returns an environment as a component names it: a path, or a name that ``gristmill.toml`` knows."""
    from gristmill.azureml_core import names

    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if text is None or not text.startswith("azureml:"):
        return environment_of(value)
    wanted = re.split("[:@]", text)[1]
    is_known = any(name.partition(":")[0] == wanted for name in names.table("environments"))
    return text if is_known else environment_of(value)


def _as_output(value: Any) -> Any:
    """Returns an output whose path can be set."""
    if value is None or isinstance(value, (str, os.PathLike, Mapping)):
        known = value if isinstance(value, Mapping) else {"path": value}
        return Fields("output", {"path": None, "type": None, "mode": None, **known})
    return value


def _place(path: str, name: str) -> str:
    """Returns the path of an output. A path in a store that is not known here becomes a local one."""
    from gristmill.azureml_core import names

    found = DATASTORE.match(path)
    if found is None or found[1] in names.table("datastores"):
        return path
    local = os.path.join("outputs", path[found.end() :])
    warn(f"output {name}: {path} is in no datastore here; it is written to {local}")
    return local
