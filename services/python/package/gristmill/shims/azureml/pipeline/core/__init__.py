from azureml._absent import absent
from gristmill.api.parallel_run_step import PipelineParameter
from gristmill.azureml_pipeline import (
    Pipeline,
    PipelineData,
    PipelineEndpoint,
    PipelineRun,
    PublishedPipeline,
    Schedule,
    ScheduleRecurrence,
    StepRun,
    StepSequence,
)

__all__ = [
    "Pipeline",
    "PipelineData",
    "PipelineEndpoint",
    "PipelineParameter",
    "PipelineRun",
    "PublishedPipeline",
    "Schedule",
    "ScheduleRecurrence",
    "StepRun",
    "StepSequence",
]

__getattr__ = absent(__name__)
