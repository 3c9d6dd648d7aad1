from azureml._absent import absent
from gristmill.api.parallel_run_step import ParallelRunConfig, ParallelRunStep
from gristmill.azureml_pipeline import PythonScriptStep

__all__ = ["ParallelRunConfig", "ParallelRunStep", "PythonScriptStep"]

__getattr__ = absent(__name__)
