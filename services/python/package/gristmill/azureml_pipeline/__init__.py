"""What driver notebooks use of ``azureml.pipeline`` and ``azureml.data``: they build a pipeline of ``ParallelRunStep``
and submit it, and it runs here.

``shims/azureml/pipeline`` and ``shims/azureml/data`` give it the names of the SDK where that is not installed.
"""

from gristmill.azureml_pipeline.data import DatasetConsumptionConfig, OutputFileDatasetConfig, PipelineData
from gristmill.azureml_pipeline.pipeline import Pipeline, PipelineRun, StepRun

__all__ = [
    "DatasetConsumptionConfig",
    "OutputFileDatasetConfig",
    "Pipeline",
    "PipelineData",
    "PipelineRun",
    "StepRun",
]
