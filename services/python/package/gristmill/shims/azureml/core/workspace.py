from azureml._absent import absent
from gristmill.azureml_core.workspace import Workspace

__all__ = ["Workspace"]

__getattr__ = absent(__name__)
