"""A stand-in for the parts of ``azureml.data`` that name inputs and outputs of steps."""

from azureml._absent import absent
from gristmill.azureml_core.dataset import DataType, FileDataset, TabularDataset
from gristmill.azureml_pipeline import OutputFileDatasetConfig

__all__ = ["DataType", "FileDataset", "OutputFileDatasetConfig", "TabularDataset"]

__getattr__ = absent(__name__)
