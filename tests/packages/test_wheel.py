"""The wheel of scripts/wheel, installed into an empty environment."""

import json
import os
import re
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a fresh environment with the wheel in it."""
    wheel = os.environ.get("GRISTMILL_WHEEL")
    if not wheel:
        pytest.fail("GRISTMILL_WHEEL must name the wheel: run scripts/test, or scripts/wheel before")
    environment = tmp_path_factory.mktemp("wheel") / "environment"
    venv.create(environment, with_pip=True)
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel]
    subprocess.run(pip, check=True)
    return environment / "bin"


def test_wheel_tags_and_content():
    wheel = Path(os.environ["GRISTMILL_WHEEL"])
    assert "-cp310-abi3-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    for expected in ("gristmill/bootstrap.py", "gristmill/_native.abi3.so", "azureml_user/parallel_run/__init__.py"):
        assert expected in names
    assert not [name for name in names if "__pycache__" in name]


def test_wheel_tag_fits_every_program_in_it():
    wheel, auditwheel = os.environ["GRISTMILL_WHEEL"], os.environ["GRISTMILL_AUDITWHEEL"]
    told = subprocess.run(
        [auditwheel, "-m", "auditwheel", "show", wheel], capture_output=True, text=True, check=True
    ).stdout.replace("\n", " ")
    assert (tag := re.search(r'is consistent with the following platform tag: "(\S+)"', told)), told
    assert wheel.endswith(f"-{tag[1]}.whl")
    # The command needs libm and the extension does not, so the test has examined both.
    assert "libm.so.6" in told


def test_wheel_has_version_and_licences(installed):
    program = (
        "import gristmill, gristmill._native, importlib.metadata as metadata\n"
        "wheel = metadata.distribution('gristmill')\n"
        "print(wheel.version, gristmill.__version__, gristmill._native.VERSION, wheel.metadata['License-Expression'])\n"
        "for name in wheel.metadata.get_all('License-File'):\n"
        "    print(name, len(wheel.read_text('licenses/' + name)) > 1000)\n"
    )
    told = subprocess.run([installed / "python", "-c", program], capture_output=True, text=True, check=True).stdout
    version = subprocess.run([installed / "gristmill", "--version"], capture_output=True, text=True, check=True)
    (number,) = version.stdout.split()[1:]
    assert told.splitlines() == [
        f"{number} {number} {number} MIT OR Apache-2.0",
        "LICENSE-MIT True",
        "LICENSE-APACHE True",
        "THIRD-PARTY-NOTICES True",
    ]


def test_command_runs_a_job_with_the_interpreter_beside_it(installed, tmp_path):
    (tmp_path / "data").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "data" / name).write_text(name)
    (tmp_path / "script.py").write_text(
        "import sys\n"
        "from azureml_user.parallel_run import EntryScript\n"
        "def run(files):\n"
        "    EntryScript().logger.info('working')\n"
        "    return [sys.prefix] * len(files)\n"
    )
    job = {
        "name": "from-wheel",
        "entry_script": "script.py",
        "inputs": [{"name": "data", "type": "file", "path": "data"}],
        "output": "output",
        "output_action": "append_row",
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    names = ("GRISTMILL_PYTHON", "GRISTMILL_PYTHON_PACKAGE", "VIRTUAL_ENV", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment["GRISTMILL_HOME"] = str(tmp_path / "home")
    ran = subprocess.run(
        [installed / "gristmill", "run", "job.yaml", "--json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert result["items"] == {"total": 3, "succeeded": 3, "failed": 0}
    assert Path(result["output"]).read_text() == f"{installed.parent}\n" * 3


def test_entry_script_works_in_a_plain_python(installed, tmp_path):
    program = (
        "from azureml_user.parallel_run import EntryScript\n"
        "entry_script = EntryScript()\n"
        "assert entry_script is EntryScript()\n"
        "entry_script.logger.info('hello')\n"
        "print(entry_script.agent_name, entry_script.working_dir)\n"
    )
    ran = subprocess.run(
        [installed / "python", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["process000", str(tmp_path)]
