"""Secrets, which are environment variables."""

import os


def secret(name):
    """Returns a variable of the environment: of that name, or of the name in capitals with ``_`` for ``-``."""
    names = dict.fromkeys((name, name.upper().replace("-", "_")))
    for variable in names:
        if variable in os.environ:
            return os.environ[variable]
    raise KeyError(f"secret {name} is not in the environment: set the variable {' or '.join(names)}")


class Keyvault:
    """The key vault of a workspace."""

    def get_secret(self, name):
        """Returns a secret by name."""
        return secret(name)

    def get_secrets(self, secrets):
        """Returns several secrets by name."""
        return {name: secret(name) for name in secrets}
