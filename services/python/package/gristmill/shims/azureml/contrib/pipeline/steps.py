from azureml._absent import check
from gristmill.api.parallel_run_step import ParallelRunConfig, ParallelRunStep

check("azureml.contrib")

__all__ = ["ParallelRunConfig", "ParallelRunStep"]
