"""What the user wants of a file: nothing."""


def run(files):
    return files
