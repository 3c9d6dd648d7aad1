from azureml._absent import absent, check
from gristmill.azureml_core.exceptions import (
    AzureMLException,
    ComputeTargetException,
    ModelNotFoundException,
    RunEnvironmentException,
    UserErrorException,
    WebserviceException,
)

check(__name__)

__all__ = [
    "AzureMLException",
    "ComputeTargetException",
    "ModelNotFoundException",
    "RunEnvironmentException",
    "UserErrorException",
    "WebserviceException",
]

__getattr__ = absent(__name__)
