from azureml._absent import absent
from gristmill.azureml_core.datastore import DataPath

__all__ = ["DataPath"]

__getattr__ = absent(__name__)
