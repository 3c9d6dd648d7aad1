from azureml._absent import absent
from gristmill.azureml_core.dataset import FileDataset

__all__ = ["FileDataset"]

__getattr__ = absent(__name__)
