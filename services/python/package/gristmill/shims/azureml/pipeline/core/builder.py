from azureml._absent import absent
from gristmill.azureml_pipeline import PipelineData

__all__ = ["PipelineData"]

__getattr__ = absent(__name__)
