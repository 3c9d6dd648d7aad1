from gristmill.azureml_pipeline import DatasetConsumptionConfig

__all__ = ["DatasetConsumptionConfig"]
