from azureml._absent import absent
from gristmill.azureml_core.exceptions import ModelNotFoundException, WebserviceException
from gristmill.azureml_core.model import Model

__all__ = ["Model", "ModelNotFoundException", "WebserviceException"]

__getattr__ = absent(__name__)
