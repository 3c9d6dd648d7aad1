from azureml._absent import absent
from gristmill.azureml_core.dataset import DataType, FileDatasetFactory, PromoteHeadersBehavior, TabularDatasetFactory

__all__ = ["DataType", "FileDatasetFactory", "PromoteHeadersBehavior", "TabularDatasetFactory"]

__getattr__ = absent(__name__)
