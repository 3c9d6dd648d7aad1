from azureml._absent import absent
from gristmill.azureml_core.dataset import Dataset

__all__ = ["Dataset"]

__getattr__ = absent(__name__)
