from azureml._absent import absent
from gristmill.azureml_core.dataset import TabularDataset

__all__ = ["TabularDataset"]

__getattr__ = absent(__name__)
