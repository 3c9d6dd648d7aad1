from azureml._absent import absent
from gristmill.azureml_core.compute import ComputeTarget
from gristmill.azureml_core.exceptions import ComputeTargetException

__all__ = ["ComputeTarget", "ComputeTargetException"]

__getattr__ = absent(__name__)
