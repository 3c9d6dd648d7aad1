from azureml._absent import absent
from gristmill.azureml_core.datastore import DataPath, DataPathComputeBinding

__all__ = ["DataPath", "DataPathComputeBinding"]

__getattr__ = absent(__name__)
