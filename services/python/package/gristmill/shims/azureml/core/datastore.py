from azureml._absent import absent
from gristmill.azureml_core.datastore import Datastore

__all__ = ["Datastore"]

__getattr__ = absent(__name__)
