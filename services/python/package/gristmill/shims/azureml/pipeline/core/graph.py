from azureml._absent import absent
from gristmill.api.parallel_run_step import PipelineParameter

__all__ = ["PipelineParameter"]

__getattr__ = absent(__name__)
