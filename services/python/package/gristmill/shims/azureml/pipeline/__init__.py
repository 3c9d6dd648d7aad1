"""A stand-in for the parts of ``azureml.pipeline`` that build and submit a ``ParallelRunStep``."""

from azureml._absent import check

check(__name__)
