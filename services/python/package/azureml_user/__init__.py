"""The name under which entry scripts know the API of a worker process."""
