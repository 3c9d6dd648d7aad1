"""``PythonScriptStep``: a script that runs once, as the command of a job."""

import os
import re
import shlex

from gristmill.api.inputs import absolute
from gristmill.api.keywords import checked
from gristmill.api.parallel_run_step import PipelineParameter, StepOrder, parameter_value
from gristmill.api.step_values import environment_of, path_of, variables_of

LONG_SECONDS = 259_200
"""Maximum timeout of a job file."""


class PythonScriptStep(StepOrder):
    """A step that runs ``python SCRIPT ARGUMENTS`` once, on this machine."""

    @checked
    def __init__(
        self,
        script_name,
        name=None,
        arguments=None,
        compute_target=None,
        runconfig=None,
        runconfig_pipeline_params=None,
        inputs=None,
        outputs=None,
        params=None,
        source_directory=None,
        allow_reuse=True,
        version=None,
        hash_paths=None,
    ):
        self.name = name or script_name
        self.script_name = script_name
        self.source_directory = absolute(source_directory or ".")
        self.arguments = list(arguments or [])
        self.runconfig = runconfig
        self.params = dict(params or {})
        self.allow_reuse = allow_reuse
        if runconfig_pipeline_params:
            raise ValueError("runconfig_pipeline_params: pass PipelineParameter objects as arguments or params instead")
        script = os.path.join(self.source_directory, script_name)
        if not os.path.isfile(script):
            raise ValueError(f"script_name: there is no file {script}")
        self._outputs = {id(one): one for one in outputs or []}
        self._inputs = {}
        for value in inputs or []:
            self._inputs.setdefault(id(_inside(value)), value)
        for value in self.arguments:
            inside = _inside(value)
            if id(inside) in self._inputs or id(inside) in self._outputs:
                continue
            if hasattr(inside, "folder_for") and inside.producer is None and inside is value:
                self._outputs[id(value)] = value
            elif hasattr(inside, "job_input") or hasattr(inside, "folder_for"):
                self._inputs[id(inside)] = value
        for output in self._outputs.values():
            if not hasattr(output, "folder_for"):
                raise TypeError(f"outputs: {output!r} is neither a PipelineData nor an OutputFileDatasetConfig")
            output.folder_for(self.name)

    def reads(self):
        """Returns its inputs."""
        return [_inside(value) for value in self._inputs.values()]

    def writes(self):
        """Returns its outputs."""
        return list(self._outputs.values())

    def job_parameters(self):
        """Returns the names of the pipeline parameters that the step refers to."""
        candidates = [*self.arguments, *self.params.values(), *self._inputs.values()]
        candidates += [one[0] for one in candidates if isinstance(one, tuple)]
        candidates += [getattr(one, "dataset", None) for one in candidates]
        return {one.name for one in candidates if isinstance(one, PipelineParameter)}

    def job_target(self):
        """Returns no compute target: commands run on this machine."""
        return None

    def job_document(self, values):
        """Returns the job file of the step.

        :param values: of pipeline parameters, by name.
        """
        texts, sides, results = {}, {}, {}
        for key, value in self._inputs.items():
            place = _place_of(_inside(value))
            if place is not None:
                texts[key] = shlex.quote(place)
                continue
            name = _unused(_named(value, "input"), sides)
            found = parameter_value(_unbound(value), values)
            sides[name] = path_of(found, f"input {name}")
            texts[key] = f'"${{{{side_inputs.{name}}}}}"'
        for key, output in self._outputs.items():
            name = _unused(_named(output, "output"), {**sides, **results})
            results[name] = absolute(output.folder_for(self.name))
            texts[key] = f'"${{{{outputs.{name}}}}}"'
        words = ["python", shlex.quote(self.script_name)]
        for argument in self.arguments:
            words.append(texts.get(id(_inside(argument))) or shlex.quote(_text(argument, values)))
        environment = getattr(self.runconfig, "environment", None)
        variables = {**variables_of(environment), **getattr(self.runconfig, "environment_variables", {})}
        variables |= {f"AML_PARAMETER_{name}": _text(value, values) for name, value in self.params.items()}
        has_packages = environment is not None and (environment.name or environment.conda_file is not None)
        keys = {
            "name": _job_name(self.name),
            "source_directory": self.source_directory,
            "entry_script": "gristmill.command_step",
            "arguments": ["--command", " ".join(words), "--rank_mini_batch_count", "1"],
            "environment": environment_of(environment) if has_packages else None,
            "environment_variables": variables,
            "side_inputs": sides,
            "outputs": results,
            "output_action": "summary_only",
            "run_invocation_timeout": LONG_SECONDS,
            "run_max_try": 1,
            "allowed_failed_count": 0,
            "process_count_per_node": 1,
            "allow_reuse": self.allow_reuse,
        }
        return {name: value for name, value in keys.items() if value not in (None, {})}

    def submit(self, target=None, *, fresh=False, pipeline_parameters=None):
        """Starts the step, and returns as soon as the job has an id."""
        from gristmill.api.start import submit

        return submit(self, target=target, fresh=fresh, pipeline_parameters=pipeline_parameters)

    def __repr__(self):
        return f"<PythonScriptStep {self.name}: {self.script_name}>"


def _place_of(value):
    """Returns the folder of a reference to data on this machine, which steps read and write; ``None`` for any other
    input."""
    place = value.located() if hasattr(value, "data_reference_name") else "://"
    return None if "://" in place else absolute(place)


def _unbound(value):
    """Returns the parameter of a pair with the way in which a step gets it."""
    return value[0] if isinstance(value, tuple) and len(value) == 2 else value


def _inside(value):
    """Returns the dataset or path of an input, without the name and the way in which the step gets it."""
    value = _unbound(value)
    return getattr(value, "dataset", value)


def _text(value, values):
    value = parameter_value(_unbound(value), values)
    if value is None or callable(value):
        raise TypeError(f"arguments: {value!r} is neither a text nor a number, nor an input or output of this step")
    return str(value)


def _named(value, otherwise):
    value = _unbound(value)
    return re.sub(r"\W", "_", str(getattr(value, "name", None) or otherwise))


def _unused(name, known):
    names = [name, *(f"{name}_{number}" for number in range(2, len(known) + 3))]
    return next(one for one in names if one not in known)


def _job_name(text):
    """Returns the name of a job: 3 to 32 lower-case letters, digits and dashes."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    name = name if name[:1].isalpha() and len(name) >= 3 else f"job-{name}"
    return name[:32].strip("-")
