from azureml._absent import absent
from gristmill.azureml_core.environment import CondaDependencies, Environment

__all__ = ["CondaDependencies", "Environment"]

__getattr__ = absent(__name__)
