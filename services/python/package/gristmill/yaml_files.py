"""Reads YAML with the package in the environment of the script."""

import json


class NoYaml(ImportError):
    """The environment has no package that reads YAML."""


def read(path):
    """Returns the content of a YAML file."""
    with open(path, encoding="utf-8-sig") as file:
        text = file.read()
    try:
        # Gristmill writes JSON, which needs no package.
        return json.loads(text)
    except ValueError:
        pass
    try:
        return _loader(path)(text)
    except NoYaml:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is not valid YAML: {reason}") from None


def _loader(path):
    try:
        import yaml
    except ImportError:
        pass
    else:
        return yaml.safe_load
    try:
        from ruamel.yaml import YAML
    except ImportError:
        raise NoYaml(f"{path} is YAML: add the package pyyaml to the environment of the script") from None
    return YAML(typ="safe").load
