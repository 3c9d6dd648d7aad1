from gristmill.azureml_core.experiment import Experiment

__all__ = ["Experiment"]
