"""``parallel_run_function`` and ``RunFunction``, with the signatures of the second SDK. A node is one job file."""

from __future__ import annotations

import copy
import os
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gristmill.api import function
from gristmill.api.keywords import checked, nearest
from gristmill.api.step_values import absolute, environment_of, input_of, path_of, target_of

if TYPE_CHECKING:
    from gristmill.api.job import Job

EXPRESSION = re.compile(r"\$\{\{\s*(inputs|outputs)\.([A-Za-z0-9_]+)\s*\}\}")
OPTIONAL = re.compile(r"\$\[\[(.*?)\]\]")
DATASTORE = re.compile(r"azureml://(?:.*/)?datastores/[^/]+/paths/")
IN_ARGUMENTS = ("error_threshold", "allowed_failed_count", "allowed_failed_percent", "process_count_per_node")
"""Keys of a job file that the arguments of a script may hold here, and that are reserved otherwise."""


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
    """What a parallel job runs.

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
        """Returns the job file of the job."""
        if self.task is None:
            raise ValueError("task is missing: pass a RunFunction")
        self._warn()
        document = self._settings()
        name = document["name"]
        split = _name_in(self.input_data, "inputs", "input_data", self.inputs)
        document["inputs"] = [{"name": split, **_input_of(self.inputs[split], f"input {split}")}]
        texts = {("inputs", split): f"${{{{inputs.{split}}}}}"}
        sides: dict[str, str] = {}
        for other in self.inputs:
            value = self.inputs[other]
            if other == split or value is None or _is_declaration(value):
                continue
            if _is_literal(value):
                texts["inputs", other] = str(_get(value, "path") or _get(value, "default") or value)
                continue
            sides[other] = path_of(_path(value), f"input {other}")
            texts["inputs", other] = f"${{{{side_inputs.{other}}}}}"
        if sides:
            document["side_inputs"] = sides
        self._add_outputs(document, texts, name)
        self._add_arguments(document, texts)
        return {key: value for key, value in document.items() if value not in (None, {}, [])}

    def _settings(self) -> dict[str, Any]:
        retries = _checked_keys(self.retry_settings, ("max_retries", "timeout"), "retry_settings")
        tries = retries.get("max_retries")
        count = self.resources.instance_count
        document: dict[str, Any] = {
            "name": function.job_name(self.name or os.path.splitext(_get(self.task, "entry_script") or "parallel")[0]),
            "description": self.description,
            "entry_script": _get(self.task, "entry_script"),
            "source_directory": absolute(_get(self.task, "code") or "."),
            "environment": environment_of(_get(self.task, "environment")),
            "environment_variables": dict(self.environment_variables or {}),
            "mini_batch_size": self.mini_batch_size if not self.partition_keys else None,
            "partition_keys": self.partition_keys,
            "error_threshold": self.error_threshold,
            "allowed_failed_count": self.mini_batch_error_threshold,
            "run_max_try": None if tries is None else int(tries) + 1,
            "run_invocation_timeout": retries.get("timeout"),
            "process_count_per_node": self.max_concurrency_per_instance,
            "node_count": count if count is None or count > 0 else None,
            "logging_level": self.logging_level,
            "allow_reuse": self.is_deterministic,
        }
        size = document["mini_batch_size"]
        if isinstance(size, str) and size.isdigit():
            document["mini_batch_size"] = int(size)
        return document

    def _add_outputs(self, document: dict[str, Any], texts: dict[tuple[str, str], str], name: str) -> None:
        rows = _get(self.task, "append_row_to")
        rows = None if rows is None else _name_in(rows, "outputs", "append_row_to", self.outputs)
        document["output_action"] = "summary_only" if rows is None else "append_row"
        for other in self.outputs:
            folder, file = _output_path(self.outputs[other], other, name)
            if other == rows:
                document["output"], document["append_row_file_name"] = folder, file
                texts["outputs", other] = "${{output}}" + (f"/{file}" if file else "")
            else:
                document.setdefault("outputs", {})[other] = folder
                texts["outputs", other] = f"${{{{outputs.{other}}}}}" + (f"/{file}" if file else "")

    def _add_arguments(self, document: dict[str, Any], texts: Mapping[tuple[str, str], str]) -> None:
        known = {"inputs": self.inputs, "outputs": self.outputs}

        def text(found: re.Match[str]) -> str:
            kind, name = found.groups()
            if name not in known[kind]:
                raise ValueError(f"{found[0]}: there is no {kind[:-1]} {name}; {nearest(name, known[kind])}")
            if (kind, name) not in texts:
                raise ValueError(f"{found[0]}: the {kind[:-1]} {name} has no value; pass one: node({name}=…)")
            return texts[kind, name]

        def optional(found: re.Match[str]) -> str:
            return found[1] if all(names in texts for names in EXPRESSION.findall(found[1])) else ""

        line = OPTIONAL.sub(optional, _get(self.task, "program_arguments") or "")
        # An expression is one word, and so is the value that replaces it.
        words = [EXPRESSION.sub(text, word) for word in shlex.split(EXPRESSION.sub(r"${{\1.\2}}", line))]
        arguments: list[str] = []
        while words:
            word = words.pop(0)
            option, given, value = word[2:].partition("=")
            if word.startswith("--") and option in IN_ARGUMENTS and (given or words):
                document[option] = _number(value if given else words.pop(0))
            else:
                arguments.append(word)
        document["arguments"] = arguments
        variables = document["environment_variables"]
        document["environment_variables"] = {
            key: EXPRESSION.sub(text, value) if isinstance(value, str) else value for key, value in variables.items()
        }

    def _warn(self) -> None:
        without = [name for name in ("instance_type", "docker_args", "shm_size") if self.resources[name] is not None]
        without += ["identity"] if self.identity is not None else []
        without += ["task.model"] if _get(self.task, "model") is not None else []
        if without:
            warnings.warn(f"{', '.join(without)}: without effect here", stacklevel=4)


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
    :param error_threshold: failed items at which the job goes on; -1: any number.
    :param mini_batch_error_threshold: failed mini-batches at which the job goes on; -1: any number.
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
    return Parallel(
        {
            "name": name,
            "description": description,
            "tags": dict(tags or {}),
            "properties": dict(properties or {}),
            "display_name": display_name,
            "experiment_name": experiment_name,
            "compute": compute,
            "retry_settings": retry_settings,
            "environment_variables": dict(environment_variables or {}),
            "logging_level": logging_level,
            "max_concurrency_per_instance": max_concurrency_per_instance,
            "error_threshold": error_threshold,
            "mini_batch_error_threshold": mini_batch_error_threshold,
            "task": task,
            "mini_batch_size": mini_batch_size,
            "partition_keys": partition_keys,
            "input_data": input_data,
            "inputs": Fields("inputs", inputs or {}),
            "outputs": Fields("outputs", {key: _as_output(value) for key, value in (outputs or {}).items()}),
            "resources": Fields(
                "resources",
                {
                    "instance_count": instance_count,
                    "instance_type": instance_type,
                    "docker_args": docker_args,
                    "shm_size": shm_size,
                },
            ),
            "identity": identity,
            "is_deterministic": is_deterministic,
        }
    )


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _checked_keys(value: Any, names: tuple[str, ...], what: str) -> dict[str, Any]:
    if isinstance(value, Mapping):
        for name in value:
            if name not in names:
                raise TypeError(f"{what} has no {name}: {nearest(name, names)}")
    return {} if value is None else {name: _get(value, name) for name in names}


def _name_in(expression: str | None, kind: str, what: str, names: Fields) -> str:
    found = EXPRESSION.fullmatch((expression or "").strip())
    if found is None or found[1] != kind:
        raise ValueError(f"{what} must be '${{{{{kind}.NAME}}}}', not {expression!r}")
    if found[2] not in names:
        raise ValueError(f"{what}: there is no {kind[:-1]} {found[2]}; {nearest(found[2], names)}")
    return found[2]


def _path(value: Any) -> Any:
    """Returns what an input's path is: of an object of an SDK, its ``path``."""
    path = _get(value, "path")
    return value if path is None else path


def _is_declaration(value: Any) -> bool:
    """Returns whether a value only says which type an input has."""
    return _get(value, "type") is not None and _get(value, "path") is None and _get(value, "default") is None


def _is_literal(value: Any) -> bool:
    kind = _get(value, "type")
    if kind is not None:
        return kind in ("string", "integer", "number", "boolean")
    # A text is a path if there is one, or if it looks like one.
    if isinstance(value, str):
        return not (os.path.exists(value) or "://" in value or value.startswith((".", "/", "~")))
    return isinstance(value, (int, float, bool))


def _input_of(value: Any, what: str) -> dict[str, Any]:
    if _is_declaration(value):
        raise ValueError(f"{what} has no path: pass one, node({what.split()[1]}=…)")
    found = input_of(_path(value), what)
    kind = _get(value, "type")
    if kind == "mltable" or any(os.path.isfile(os.path.join(path, "MLTable")) for path in found["paths"]):
        return {**found, "type": "tabular", "format": "mltable"}
    return {**found, "type": "file"} if kind in ("uri_file", "uri_folder") else found


def _as_output(value: Any) -> Any:
    """Returns an output whose path can be set."""
    if value is None or isinstance(value, (str, os.PathLike, Mapping)):
        known = value if isinstance(value, Mapping) else {"path": value}
        return Fields("output", {"path": None, "type": None, "mode": None, **known})
    return value


def _output_path(value: Any, name: str, job: str) -> tuple[str, str | None]:
    """Returns the folder of an output, and the name of its file if it is one."""
    path = None if _get(value, "path") is None else os.fspath(_get(value, "path"))
    if path is None:
        return absolute(os.path.join("outputs", job, name)), None
    path = path.replace("${{name}}", job).replace("${name}", job).replace("${{output_name}}", name)
    if DATASTORE.match(path):
        local = os.path.join("outputs", DATASTORE.sub("", path))
        warnings.warn(f"output {name}: {path} is in no datastore here; it is written to {local}", stacklevel=6)
        path = local
    folder, file = os.path.split(absolute(path))
    is_file = _get(value, "type") == "uri_file" or (os.path.splitext(file)[1] and _get(value, "type") != "uri_folder")
    return (folder, file) if is_file else (absolute(path), None)


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text
