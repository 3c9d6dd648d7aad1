from gristmill.azureml_core.model import Model, ModelNotFoundException

__all__ = ["Model", "ModelNotFoundException"]
