"""The part of ``azureml.pipeline`` and ``azureml.data`` that driver notebooks use. They build a pipeline of
``ParallelRunStep`` and ``PythonScriptStep`` and submit it, and it runs here.

If the SDK is not installed, ``shims/azureml`` gives this package its names.
"""

from gristmill.azureml_core.consumption import DatasetConsumptionConfig
from gristmill.azureml_pipeline.data import OutputFileDatasetConfig, PipelineData
from gristmill.azureml_pipeline.pipeline import Pipeline, PipelineRun, StepRun, StepSequence
from gristmill.azureml_pipeline.python_script_step import PythonScriptStep
from gristmill.azureml_pipeline.refused import PipelineEndpoint, PublishedPipeline, Schedule, ScheduleRecurrence

__all__ = [
    "DatasetConsumptionConfig",
    "OutputFileDatasetConfig",
    "Pipeline",
    "PipelineData",
    "PipelineEndpoint",
    "PipelineRun",
    "PublishedPipeline",
    "PythonScriptStep",
    "Schedule",
    "ScheduleRecurrence",
    "StepRun",
    "StepSequence",
]
