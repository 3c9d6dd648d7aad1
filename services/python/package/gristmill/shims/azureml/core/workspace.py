from gristmill.azureml_core.workspace import Workspace

__all__ = ["Workspace"]
