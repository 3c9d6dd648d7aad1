from gristmill.azureml_pipeline import PythonScriptStep

__all__ = ["PythonScriptStep"]
