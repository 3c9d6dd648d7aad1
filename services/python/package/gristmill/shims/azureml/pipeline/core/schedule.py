from azureml._absent import absent
from gristmill.azureml_pipeline import Schedule, ScheduleRecurrence

__all__ = ["Schedule", "ScheduleRecurrence"]

__getattr__ = absent(__name__)
