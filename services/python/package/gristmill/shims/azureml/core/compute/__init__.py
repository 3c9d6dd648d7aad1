from azureml._absent import absent
from gristmill.azureml_core.compute import AmlCompute, ComputeInstance, ComputeTarget

__all__ = ["AmlCompute", "ComputeInstance", "ComputeTarget"]

__getattr__ = absent(__name__)
