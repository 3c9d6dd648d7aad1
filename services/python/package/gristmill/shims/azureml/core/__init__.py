"""A stand-in for the parts of ``azureml.core`` that entry scripts use, for environments without the real one.

Models come from a folder; runs are offline. It is the last entry of ``sys.path``, so an installed ``azureml-core``
takes precedence.
"""

from azureml.core.experiment import Experiment
from azureml.core.model import Model
from azureml.core.run import Run
from azureml.core.workspace import Workspace

__all__ = ["Experiment", "Model", "Run", "Workspace"]


class _Absent(type):
    """Can be imported at the top of scripts; its use raises an error that names the missing part."""

    def __getattr__(cls, attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise _needs_the_real_one(f"{cls.__name__}.{attribute}")

    def __call__(cls, *_, **__):
        raise _needs_the_real_one(cls.__name__)


def _needs_the_real_one(name):
    return NotImplementedError(
        f"azureml.core.{name} needs the real azureml-core: add it to the environment of the script"
    )


def __getattr__(name):
    if not name[:1].isupper():
        raise AttributeError(f"module 'azureml.core' has no attribute '{name}'")
    return _Absent(name, (), {})
