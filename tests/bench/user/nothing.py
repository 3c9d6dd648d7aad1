"""User code that does nothing: it returns a zero for each row."""


def run(table):
    return [0] * len(table)
