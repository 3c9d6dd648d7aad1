from azureml._absent import absent
from gristmill.api.parallel_run_step import PipelineParameter
from gristmill.azureml_pipeline import Pipeline, PipelineData, PipelineRun, StepRun

__all__ = ["Pipeline", "PipelineData", "PipelineParameter", "PipelineRun", "StepRun"]

__getattr__ = absent(__name__)
