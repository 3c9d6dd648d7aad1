"""User code that returns its input."""


def run(files):
    return files
