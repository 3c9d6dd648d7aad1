from azureml._absent import absent
from gristmill.api.parallel_run_step import ParallelRunConfig, ParallelRunStep

__all__ = ["ParallelRunConfig", "ParallelRunStep"]

__getattr__ = absent(__name__)
