"""The package name under which entry scripts import the API of a worker process."""
