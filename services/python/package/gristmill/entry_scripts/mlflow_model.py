"""Entry script of a job that applies an MLflow model. Its folder holds nothing else, because it is on ``sys.path``."""

from gristmill.mlflow_model import init, run

__all__ = ["init", "run"]
