from gristmill.azureml_core.run import Run, RunEnvironmentException, RunStatus, _OfflineRun

__all__ = ["Run", "RunEnvironmentException", "RunStatus", "_OfflineRun"]
