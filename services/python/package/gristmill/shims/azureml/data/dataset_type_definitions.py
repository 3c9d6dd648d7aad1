from azureml._absent import absent
from gristmill.azureml_core.dataset import PromoteHeadersBehavior

__all__ = ["PromoteHeadersBehavior"]

__getattr__ = absent(__name__)
