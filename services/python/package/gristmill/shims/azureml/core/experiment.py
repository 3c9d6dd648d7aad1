from azureml._absent import absent
from gristmill.azureml_core.experiment import Experiment

__all__ = ["Experiment"]

__getattr__ = absent(__name__)
