from azureml._absent import absent
from gristmill.azureml_core.environment import CondaDependencies

__all__ = ["CondaDependencies"]

__getattr__ = absent(__name__)
