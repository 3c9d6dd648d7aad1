"""The wheel of scripts/wheel, installed into an empty environment."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import cloudpickle
import pytest

from harness import Workplace
from packages import Wheel, run

in_one_process = pytest.mark.xdist_group("wheel")
"""Each process of pytest would make an environment for itself."""


def run_alone(python: Path, program: str, folder: Path) -> list[str]:
    """Returns the lines that a program prints which knows nothing of the tests."""
    foreign = ("GRISTMILL", "PYTHON", "VIRTUAL")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return run(python, "-c", program, cwd=folder, env={**kept, "GRISTMILL_HOME": str(folder / "home")}).splitlines()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a fresh environment with the wheel in it."""
    return Wheel(tmp_path_factory.mktemp("wheel")).folder / "bin"


def test_wheel_tags_and_content():
    wheel = Path(os.environ["GRISTMILL_WHEEL"])
    assert "-cp310-abi3-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    for expected in (
        *("gristmill/bootstrap.py", "gristmill/_native.abi3.so", "azureml_user/parallel_run/__init__.py"),
        *("gristmill/py.typed", "gristmill/api/start.py", "gristmill/shims/azureml/_stand_ins.py"),
    ):
        assert expected in names
    assert not [name for name in names if "__pycache__" in name]


def test_wheel_tag_fits_every_program_in_it():
    wheel, auditwheel = os.environ["GRISTMILL_WHEEL"], os.environ["GRISTMILL_AUDITWHEEL"]
    told = run(auditwheel, "-m", "auditwheel", "show", wheel).replace("\n", " ")
    assert (tag := re.search(r'is consistent with the following platform tag: "(\S+)"', told)), told
    assert wheel.endswith(f"-{tag[1]}.whl")
    # The command needs libm and the extension does not, so the test has examined both.
    assert "libm.so.6" in told


@in_one_process
def test_wheel_has_version_and_licences(installed):
    program = (
        "import gristmill, gristmill._native, importlib.metadata as metadata\n"
        "wheel = metadata.distribution('gristmill')\n"
        "print(wheel.version, gristmill.__version__, gristmill._native.VERSION, wheel.metadata['License-Expression'])\n"
        "for name in wheel.metadata.get_all('License-File'):\n"
        "    print(name, len(wheel.read_text('licenses/' + name)) > 1000)\n"
    )
    # "gristmill 0.1.0 (12 digits of the commit)": a source archive names no commit.
    number = run(installed / "gristmill", "--version").split()[1]
    assert run(installed / "python", "-c", program).splitlines() == [
        f"{number} {number} {number} MIT OR Apache-2.0",
        "LICENSE-MIT True",
        "LICENSE-APACHE True",
        "THIRD-PARTY-NOTICES True",
    ]


@in_one_process
def test_command_runs_a_job_with_the_interpreter_beside_it(installed, tmp_path):
    workplace = Workplace(tmp_path, installed / "gristmill", installed / "python")
    for name in ("GRISTMILL_PYTHON", "VIRTUAL_ENV", "PYTHONPATH"):
        workplace.environment.pop(name, None)
    workplace.data(3)
    script = """
        import sys
        from azureml_user.parallel_run import EntryScript
        def run(files):
            EntryScript().logger.info("working")
            return [sys.prefix] * len(files)
    """
    assert workplace.job(script).run().lines == [str(installed.parent)] * 3


@in_one_process
def test_driver_runs_a_step_with_nothing_else_installed(installed, tmp_path):
    (tmp_path / "score.py").write_text("def run(files): return [open(file).read() for file in files]")
    (tmp_path / "a.txt").write_text("one")
    driver = """
import gristmill
from azureml.pipeline.steps import ParallelRunConfig, ParallelRunStep

config = ParallelRunConfig(None, "score.py", 0, "append_row", "local", 1)
job = ParallelRunStep("score", config, inputs=["a.txt"], output="out").submit().wait(progress=False)
print(open(job.output).read().strip())
"""
    assert run_alone(installed / "python", driver, tmp_path) == ["one"]


def python_of_this_machine(minor: int) -> Path:
    """Returns an interpreter of this version, also one of pyenv, whose commands on PATH run only chosen versions."""
    name = f"python3.{minor}"
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    for python in (shutil.which(name), *sorted(versions.glob(f"3.{minor}.*/bin/{name}"))):
        if python is not None and subprocess.run([python, "-c", "import venv"], capture_output=True).returncode == 0:
            return Path(python)
    pytest.skip(f"Python 3.{minor} is not installed")


@pytest.mark.parametrize("minor", range(10, 15))
def test_function_runs_with_every_python_of_this_machine(minor, tmp_path):
    python = python_of_this_machine(minor)
    environment = tmp_path / "environment"
    run(python, "-m", "venv", "--without-pip", environment)
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "--quiet"]
    run(*pip, "--no-index", "--no-deps", os.environ["GRISTMILL_WHEEL"])
    (packages,) = environment.glob("lib/python*/site-packages")
    shutil.copytree(Path(cloudpickle.__file__).parent, packages / "cloudpickle")
    (tmp_path / "a.txt").write_text("one")
    call = """
import gristmill, sys

def read(files: list[str]):
    return [f"{sys.version_info.minor} {open(file).read()}" for file in files]

job = gristmill.run(read, inputs="a.txt", output="results/rows.csv", progress=False)
print(open(job.output).read())
"""
    assert run_alone(environment / "bin" / "python", call, tmp_path)[:2] == ["value", f"{minor} one"]
