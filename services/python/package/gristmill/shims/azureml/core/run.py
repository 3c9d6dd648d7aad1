from azureml._absent import absent
from gristmill.azureml_core.exceptions import RunEnvironmentException
from gristmill.azureml_core.run import Run, RunStatus, _OfflineRun

__all__ = ["Run", "RunEnvironmentException", "RunStatus", "_OfflineRun"]

__getattr__ = absent(__name__)
