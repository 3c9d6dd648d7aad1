"""Files with the settings of a ``ParallelRunConfig``, as ``save_to_yaml`` of the SDK writes them."""

from gristmill import yaml_files
from gristmill.azureml_core.environment import Environment


def keys_of(path, workspace):
    """Returns the keywords of the constructor that a file holds."""
    keys = dict((yaml_files.read(path) or {}).get("parallel_run_config") or {})
    if not keys:
        raise ValueError(f"{path} has no key parallel_run_config, which holds all others")
    environment = _environment(keys, path, workspace)
    target = keys.pop("compute_target_name", keys.pop("compute_target", None))
    if keys.get("mini_batch_size") is not None:
        keys["mini_batch_size"] = str(keys["mini_batch_size"])
    given = {name: value for name, value in keys.items() if value is not None}
    return {**given, "environment": environment, "compute_target": target}


def _environment(keys, path, workspace):
    named = keys.pop("environment_name", None)
    folder = keys.pop("environment_dir_path", None)
    environment = keys.pop("environment", None)
    if isinstance(environment, str):
        environment = yaml_files.read(environment)
    if environment is not None:
        return Environment._of_dict(environment)
    if folder is not None:
        return Environment.load_from_directory(folder)
    if named is not None:
        return Environment.get(workspace, named)
    raise ValueError(f"{path} names no environment: add environment or environment_name")
