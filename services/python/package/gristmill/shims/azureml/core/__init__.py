"""A stand-in for the parts of ``azureml.core`` that entry scripts use, for environments without the real one.

Models come from a folder; runs are offline. It is the last entry of ``sys.path``, so an installed ``azureml-core``
takes precedence.
"""

from azureml._stand_ins import absent
from azureml.core.compute import ComputeTarget
from azureml.core.dataset import Dataset
from azureml.core.datastore import Datastore
from azureml.core.environment import Environment
from azureml.core.experiment import Experiment
from azureml.core.keyvault import Keyvault
from azureml.core.model import Model
from azureml.core.run import Run
from azureml.core.runconfig import RunConfiguration
from azureml.core.workspace import Workspace

VERSION = "0.0.0"
"""The version that scripts print. It shows that no SDK is installed."""

__all__ = [
    "VERSION",
    "ComputeTarget",
    "Dataset",
    "Datastore",
    "Environment",
    "Experiment",
    "Keyvault",
    "Model",
    "Run",
    "RunConfiguration",
    "Workspace",
]

__getattr__ = absent(__name__)
