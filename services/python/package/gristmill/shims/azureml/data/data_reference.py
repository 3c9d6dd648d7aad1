from azureml._absent import absent
from gristmill.azureml_core.datastore import DataReference

__all__ = ["DataReference"]

__getattr__ = absent(__name__)
