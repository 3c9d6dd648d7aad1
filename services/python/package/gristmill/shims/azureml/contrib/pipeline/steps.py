from azureml._stand_ins import check
from gristmill.api.parallel_run_step import ParallelRunConfig, ParallelRunStep

check("azureml.contrib")

__all__ = ["ParallelRunConfig", "ParallelRunStep"]
