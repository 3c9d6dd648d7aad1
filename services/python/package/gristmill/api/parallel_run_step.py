"""``ParallelRunConfig``, ``ParallelRunStep`` and ``PipelineParameter``, with the constructors of the first SDK. A step
becomes one job file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.api.errors import warn
from gristmill.api.inputs import absolute
from gristmill.api.keywords import checked, checked_fields
from gristmill.api.step_values import environment_of, input_of, path_of, target_of, variables_of

if TYPE_CHECKING:
    from gristmill.api.job import Job

SIZE = re.compile(r"\d+([kmg]b)?", re.IGNORECASE)
FEW_BYTES = 1000
"""Bytes. Mini-batches of tables are never smaller."""
BAD_IN_FILE_NAME = re.compile(r'[~"#%&*:<>?/\\{|}]')
RESERVED = (
    *("mini_batch_size", "partition_keys", "output_action", "output", "append_row_file_name", "error_threshold"),
    *("allowed_failed_count", "allowed_failed_percent", "run_invocation_timeout", "run_max_try"),
    *("process_count_per_node", "logging_level"),
)
"""Options that a step passes to the script itself."""


class PipelineParameter:
    """A value that ``submit`` can replace by name: ``step.submit(pipeline_parameters={"size": 20})``.

    :param name: its name.
    :param default_value: its value otherwise: a number, a text, or a dataset.

    >>> import gristmill
    >>> size = gristmill.PipelineParameter(name="size", default_value=10)
    >>> (size.name, size.default_value)
    ('size', 10)
    """

    @checked
    def __init__(self, name: str, default_value: Any) -> None:
        self.name = name
        self.default_value = default_value

    def __repr__(self) -> str:
        return f"PipelineParameter(name={self.name!r}, default_value={self.default_value!r})"


@checked_fields
@dataclass(eq=False, repr=False)
class ParallelRunConfig:
    """The settings with which a ``ParallelRunStep`` runs its entry script.

    A ``PipelineParameter`` may stand for ``mini_batch_size``, ``node_count``, ``process_count_per_node``,
    ``run_invocation_timeout``, ``run_max_try``, ``logging_level`` and ``partition_keys`` (as JSON text).

    :param environment: an interpreter, a requirements file or a conda file; ``None``: the interpreter of this process.
    :param entry_script: the script with ``init()`` and ``run(mini_batch)``, below ``source_directory`` if given.
    :param error_threshold: maximum number of failed items; -1: any number.
    :param output_action: ``append_row`` (one output file) or ``summary_only``.
    :param compute_target: a target of ``gristmill.toml``; ``None`` or ``"local"``: this machine.
    :param node_count: nodes, at least 1.
    :param process_count_per_node: processes on each; by default one for each core, or 1 where there is a GPU.
    :param mini_batch_size: files (10 by default), or bytes of a table (``"1MB"`` by default).
    :param source_directory: the folder of the script and of what it imports.
    :param description: a text for people.
    :param logging_level: ``DEBUG``, ``INFO`` or ``WARNING``.
    :param run_invocation_timeout: seconds of one call of ``run``.
    :param run_max_try: tries of a mini-batch.
    :param append_row_file_name: the name of the output file; ``parallel_run_step.txt`` by default.
    :param allowed_failed_count: maximum number of failed mini-batches; -1 or ``None``: any number.
    :param allowed_failed_percent: the same in percent.
    :param partition_keys: one mini-batch for each combination of values of these columns, instead of a size.
    :param environment_variables: variables of the processes that run the script.
    :raises ValueError: a value that no job could have.
    :raises TypeError: an unknown keyword; the message has the nearest right one.

    >>> import gristmill
    >>> config = gristmill.ParallelRunConfig(
    ...     environment=None, entry_script="score.py", error_threshold=10, output_action="append_row",
    ...     compute_target="local", node_count=2)
    >>> (config.run_max_try, config.run_invocation_timeout, config.logging_level)
    (3, 60, 'INFO')
    """

    environment: Any
    entry_script: str
    error_threshold: int
    output_action: str
    compute_target: Any
    node_count: int | PipelineParameter
    process_count_per_node: int | PipelineParameter | None = None
    mini_batch_size: int | str | PipelineParameter | None = None
    source_directory: str | os.PathLike[str] | None = None
    description: str | None = None
    logging_level: str | PipelineParameter = "INFO"
    run_invocation_timeout: int | PipelineParameter = 60
    run_max_try: int | PipelineParameter = 3
    append_row_file_name: str | None = None
    allowed_failed_count: int | None = None
    allowed_failed_percent: float | None = None
    partition_keys: list[str] | PipelineParameter | None = None
    environment_variables: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        self.entry_script = self.entry_script.strip()
        if self.source_directory is not None:
            self.source_directory = os.fspath(self.source_directory).strip()
        self.environment_variables = dict(self.environment_variables or {})
        self._check()

    def _check(self) -> None:
        _whole("error_threshold", self.error_threshold, -1)
        if self.allowed_failed_count is not None:
            _whole("allowed_failed_count", self.allowed_failed_count, -1)
        if self.allowed_failed_percent is not None and not 0 <= self.allowed_failed_percent <= 100:
            raise ValueError(
                f"allowed_failed_percent must be a number from 0 to 100, not {self.allowed_failed_percent}"
            )
        for name in ("node_count", "process_count_per_node", "run_invocation_timeout", "run_max_try"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1)
        if self.output_action.lower() not in ("summary_only", "append_row"):
            raise ValueError(f"output_action must be summary_only or append_row, not {self.output_action!r}")
        if self.mini_batch_size is not None and self.partition_keys is not None:
            raise ValueError("mini_batch_size and partition_keys exclude each other: pass one of them")
        size = self.mini_batch_size
        if isinstance(size, str) and not SIZE.fullmatch(size):
            raise ValueError(f"mini_batch_size: {size!r} is not a size; write 10, '1024', '10kb', '10MB' or '1GB'")
        if self.partition_keys is not None:
            _keys(self.partition_keys)
        if self.append_row_file_name is not None and BAD_IN_FILE_NAME.search(self.append_row_file_name):
            raise ValueError(f"append_row_file_name: {self.append_row_file_name!r} is not a file name")

    @classmethod
    def load_yaml(cls, workspace: Any, path: str | os.PathLike[str]) -> ParallelRunConfig:
        """Returns the configuration of a file, as ``save_to_yaml`` writes it. Relative paths start from the working
        folder.

        :param workspace: has the names of environments and compute targets, which ``gristmill.toml`` has here.
        """
        from gristmill.azureml_pipeline.configuration import keys_of

        keys: dict[str, Any] = keys_of(path, workspace)  # type: ignore[no-untyped-call]
        try:
            return cls(**keys)
        except TypeError as error:
            raise TypeError(f"{path}: {error}") from None

    def save_to_yaml(self, path: str | os.PathLike[str]) -> None:
        """Writes the configuration to a file, which ``load_yaml`` reads."""
        keys = {name: parameter_value(value, {}) for name, value in vars(self).items() if name != "environment"}
        target = keys.pop("compute_target")
        keys["compute_target_name"] = target if isinstance(target, str) else getattr(target, "name", None)
        packages = getattr(self.environment, "conda_file", None)
        keys["environment"] = {
            "name": getattr(self.environment, "name", None),
            "environmentVariables": variables_of(self.environment),
            "python": {} if packages is None else {"condaDependencies": packages},
        }
        text = json.dumps({"parallel_run_config": keys}, indent=2, ensure_ascii=False)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def job_keys(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keys of a job file that this configuration sets.

        :param values: of pipeline parameters, by name.
        """
        keys: dict[str, Any] = {
            name: parameter_value(getattr(self, name), values)
            for name in (
                *("description", "error_threshold", "allowed_failed_count", "allowed_failed_percent", "node_count"),
                *("process_count_per_node", "mini_batch_size", "run_invocation_timeout", "run_max_try"),
                *("logging_level", "append_row_file_name", "environment_variables"),
            )
        }
        keys["output_action"] = self.output_action.lower()
        if keys["output_action"] == "summary_only":
            del keys["append_row_file_name"]
        if self.partition_keys is not None:
            keys["partition_keys"] = _keys(parameter_value(self.partition_keys, values))
        keys["entry_script"] = self.entry_script
        if self.source_directory is None:
            folder, keys["entry_script"] = os.path.split(absolute(self.entry_script))
            keys["source_directory"] = folder
        else:
            keys["source_directory"] = absolute(self.source_directory)
        keys["environment"] = environment_of(self.environment)
        keys["environment_variables"] = {**variables_of(self.environment), **(keys["environment_variables"] or {})}
        return {name: value for name, value in keys.items() if value not in (None, {})}


class StepOrder:
    """The order that a driver gives to steps, besides the order of their inputs."""

    _after: list[Any] | None = None

    def run_after(self, step: Any) -> None:
        """Lets this step begin after another one, whose output it does not read."""
        self._after = [*self.after, step]

    @property
    def after(self) -> list[Any]:
        """The steps of ``run_after``."""
        return self._after or []


@checked_fields
@dataclass(eq=False, repr=False)
class ParallelRunStep(StepOrder):
    """A job: an entry script over every mini-batch of its inputs. ``submit`` starts it.

    :param name: 3 to 32 lower-case letters, digits and dashes.
    :param parallel_run_config: the settings of the script.
    :param inputs: a list of paths, patterns, URLs, datasets, DataFrames or Arrow tables; all of them files, or all
        of them tables. May be empty with ``--rank_mini_batch_count`` in the arguments.
    :param output: the folder of the output, as a path, URL or ``PipelineData``; not needed for ``summary_only``.
    :param side_inputs: a mapping of names to paths, or a list of named datasets, the same for every mini-batch.
    :param arguments: elements of ``sys.argv``; an input, side input or the output among them becomes its path.
    :param allow_reuse: return the result of an earlier equal job.
    :raises ValueError: a value that no job could have.
    :raises TypeError: an unknown keyword, or an input that names no files.

    >>> import gristmill, pathlib
    >>> _ = pathlib.Path("score.py").write_text("def run(files): return [len(open(file).read()) for file in files]")
    >>> _ = pathlib.Path("poem.txt").write_text("in Xanadu")
    >>> config = gristmill.ParallelRunConfig(
    ...     environment=None, entry_script="score.py", error_threshold=0, output_action="append_row",
    ...     compute_target="local", node_count=1)
    >>> step = gristmill.ParallelRunStep("lengths", config, inputs=["poem.txt"], output="lengths")
    >>> print(open(step.submit().wait(progress=False).output).read().strip())
    9
    """

    name: str
    parallel_run_config: ParallelRunConfig
    inputs: Sequence[Any]
    output: Any = None
    side_inputs: Mapping[str, Any] | Sequence[Any] | None = None
    arguments: Sequence[Any] | None = None
    allow_reuse: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.parallel_run_config, ParallelRunConfig):
            kind = type(self.parallel_run_config).__name__
            raise TypeError(f"parallel_run_config must be a ParallelRunConfig, not a {kind}")
        if isinstance(self.inputs, (str, bytes, os.PathLike)) or not isinstance(self.inputs, Sequence):
            raise TypeError("inputs must be a list, also of one input")
        self.inputs = list(self.inputs)
        self.arguments = list(self.arguments or [])
        self._check()
        # Records the producer of outputs that later steps may read.
        for output in self.writes():
            if hasattr(output, "folder_for"):
                output.folder_for(self.name)

    def _check(self) -> None:
        config = self.parallel_run_config
        ranks = any(str(one).startswith("--rank_mini_batch_count") for one in self.arguments or ())
        if not self.inputs and not ranks:
            raise ValueError("inputs is empty: pass an input, or --rank_mini_batch_count in the arguments")
        if self.output is None and config.output_action.lower() != "summary_only":
            raise ValueError("output is missing: pass the folder of the output file, or use summary_only")
        if self.arguments and not str(self.arguments[0]).startswith("-"):
            raise ValueError(f"arguments must begin with an option, not with {self.arguments[0]!r}")
        for argument in self.arguments or ():
            option = argument[2:].partition("=")[0] if isinstance(argument, str) and argument[:2] == "--" else None
            if option in RESERVED:
                raise ValueError(f"the argument --{option} is reserved: ParallelRunConfig sets it")
        script = os.path.join(config.source_directory or "", config.entry_script)
        if config.source_directory is not None and not os.path.isdir(config.source_directory):
            raise ValueError(f"source_directory: there is no folder {config.source_directory}")
        if not os.path.isfile(script):
            raise ValueError(f"entry_script: there is no file {script}")

    def job_document(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the job file of the step.

        :param values: of pipeline parameters, by name.
        """
        keys = self.parallel_run_config.job_keys(values)
        document: dict[str, Any] = {"name": self.name, **keys, "allow_reuse": self.allow_reuse}
        texts: list[tuple[Any, str]] = [(self.output, "${{output}}")] if self.output is not None else []
        document["inputs"] = []
        for position, value in enumerate(self.inputs):
            named = value[0] if isinstance(value, tuple) else value
            name = str(getattr(named, "name", None) or f"input_{position}")
            found = self._input(parameter_value(value, values), name, values)
            if found["type"] == "tabular":
                # As in Azure ML.
                found = {"on_type_mismatch": "missing", **found}
            document["inputs"].append({"name": name, **found})
            texts.append((value, f"${{{{inputs.{name}}}}}"))
        sides = _named(self.side_inputs)
        for name, value in sides.items():
            texts.append((value, f"${{{{side_inputs.{name}}}}}"))
        if sides:
            document["side_inputs"] = {
                name: path_of(parameter_value(value, values), f"side input {name}") for name, value in sides.items()
            }
        outputs = {}
        for value in self.writes():
            if value is not self.output:
                texts.append((value, f"${{{{outputs.{value.name}}}}}"))
                outputs[value.name] = absolute(value.folder_for(self.name))
        if outputs:
            document["outputs"] = outputs
        if self.arguments:
            document["arguments"] = [_argument(one, texts, values) for one in self.arguments]
        if self.output is not None:
            folder = self.output.folder_for(self.name) if hasattr(self.output, "folder_for") else self.output
            document["output"] = absolute(folder)
        return document

    def _input(self, value: Any, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keys of an input. If the kind of a dataset is unknown, a tiny mini-batch size means files."""
        found = input_of(value, f"input {name}")
        as_files = getattr(getattr(value, "dataset", value), "file_input", None)
        size = str(parameter_value(self.parallel_run_config.mini_batch_size, values))
        if found["type"] != "tabular" or as_files is None or not size.isdigit() or int(size) >= FEW_BYTES:
            return found
        files: dict[str, Any] | None = as_files()
        if files is None:
            return found
        warn(
            f"input {name}: its files are the items, because mini_batch_size is {size}; a size such as '10KB' makes "
            "rows of tables the items"
        )
        return files

    def job_parameters(self) -> set[str]:
        """Returns the names of the pipeline parameters that the step refers to."""
        candidates = [*vars(self.parallel_run_config).values(), *self.inputs, *(self.arguments or ())]
        candidates += _named(self.side_inputs).values()
        candidates += [getattr(one, "dataset", None) for one in candidates]
        return {one.name for one in candidates if isinstance(one, PipelineParameter)}

    def reads(self) -> list[Any]:
        """Returns its inputs and side inputs."""
        return [*self.inputs, *_named(self.side_inputs).values()]

    def writes(self) -> list[Any]:
        """Returns its output, and those that only its arguments name."""
        known = {id(getattr(one, "dataset", one)) for one in [*self.reads(), self.output]}
        others = [one for one in self.arguments or () if hasattr(one, "folder_for") and id(one) not in known]
        return [*([] if self.output is None else [self.output]), *others]

    def job_target(self) -> str | None:
        """Returns the compute target that the configuration names."""
        return target_of(self.parallel_run_config.compute_target)

    def submit(
        self, target: str | None = None, *, fresh: bool = False, pipeline_parameters: Mapping[str, Any] | None = None
    ) -> Job:
        """Starts the step, and returns as soon as the job has an id.

        :param target: a compute target, instead of that of the configuration.
        :param fresh: start over. Otherwise the same step continues an interrupted job, or returns the earlier result.
        :param pipeline_parameters: values of the ``PipelineParameter`` objects, by name.
        :raises InvalidJob: nothing was started; the message names each problem.
        """
        from gristmill.api.start import submit

        return submit(self, target=target, fresh=fresh, pipeline_parameters=pipeline_parameters)

    def __repr__(self) -> str:
        return f"<ParallelRunStep {self.name}: {self.parallel_run_config.entry_script}, {len(self.inputs)} inputs>"


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, PipelineParameter):
        value = value.default_value
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number from {least}, not {value!r}")


def _keys(value: Any) -> list[str]:
    if isinstance(value, PipelineParameter):
        value = value.default_value
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError(f"partition_keys must be a JSON list of texts as a parameter, not {value!r}") from None
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"partition_keys must be a list of texts, not {value!r}")
    return value


def parameter_value(value: Any, values: Mapping[str, Any]) -> Any:
    """Returns the value of a parameter, and any other value unchanged."""
    # A pair of a parameter and its `DataPathComputeBinding`, which declares how a step gets the path.
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], PipelineParameter):
        value = value[0]
    inside = getattr(value, "dataset", None)
    if isinstance(inside, PipelineParameter):
        return parameter_value(inside, values)
    return values.get(value.name, value.default_value) if isinstance(value, PipelineParameter) else value


def _named(side_inputs: Any) -> dict[str, Any]:
    if isinstance(side_inputs, Mapping):
        return {str(name): value for name, value in side_inputs.items()}
    return {
        str(getattr(value, "name", None) or f"side_{number}"): value for number, value in enumerate(side_inputs or [])
    }


def _argument(argument: Any, texts: list[tuple[Any, str]], values: Mapping[str, Any]) -> Any:
    for value, text in texts:
        if argument is value and not isinstance(value, str):
            return text
    argument = parameter_value(argument, values)
    if isinstance(argument, (str, int, float, bool)):
        return argument
    if isinstance(argument, os.PathLike):
        return os.fspath(argument)
    raise TypeError(
        f"arguments: {argument!r} is neither a text nor a number, nor an input, a side input or the output of this step"
    )
