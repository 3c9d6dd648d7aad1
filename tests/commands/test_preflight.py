"""Every command that reads a job file reports errors before the first mini-batch."""

import json
import os
import subprocess
import sys
import venv

import pytest

from http_server import HttpServer

COMMANDS = ("validate", "plan", "run")


def refusals(workplace, job, *arguments, **environment):
    """Returns the common error of all commands about an invalid job; none of them leaves files."""
    said = set()
    for command in COMMANDS:
        ended = workplace.command(command, job.file, *arguments, **environment)
        assert ended.exit_status == 2, f"{command}: {ended}"
        assert "Traceback" not in ended.stderr
        said.add(ended.stderr)
    (text,) = said
    assert workplace.job_ids() == []
    assert not (workplace.folder / "output").exists()
    return text.strip()


SCRIPTS = {
    # what: (script, parts of the one line that is said)
    "syntax": ("def run(files):\n    return [\n", ("entry.py:2: ", "was never closed")),
    "return outside": ("def run(files): return files\nreturn 1\n", ("entry.py:2: ", "outside function")),
    "encoding": ("# coding: klingon\ndef run(files): return files\n", ("entry.py", "klingon")),
    "no run": ("def init(): pass\n", ("entry.py: it defines no run(mini_batch)",)),
    "run in a class": ("class A:\n    def run(self, files): pass\n", ("it defines no run(mini_batch)",)),
    "no item": ("async def run_item(): return 1\n", ("entry.py:1: run_item takes no argument",)),
    "no argument": ("def run(): return []\n", ("entry.py:1: run takes no argument",)),
    "three arguments": ("def run(a, b, c): return []\n", ("entry.py:1: run needs 3 arguments",)),
    "keyword": ("def run(files, *, size): return []\n", ("run needs the keyword argument size",)),
    "init with argument": ("def init(x): pass\ndef run(files): return files\n", ("entry.py:1: init needs 1 argument",)),
    "module beside": ("import helper\ndef run(files): return files\n", ("helper.py:3: ",)),
    "package beside": ("from package.deep import x\ndef run(files): return files\n", ("package/deep.py:1: ",)),
}


@pytest.mark.parametrize("what", SCRIPTS)
def test_script_that_cannot_run_is_rejected(workplace, what):
    script, parts = SCRIPTS[what]
    workplace.data(2)
    workplace.write({"code/helper.py": "a = 1\n\ndef broken(:\n", "code/package/__init__.py": ""})
    workplace.write({"code/package/deep.py": "x = = 1\n"})
    said = refusals(workplace, workplace.job(script))
    assert len(said.splitlines()) == 1, said
    for part in parts:
        assert part in said


GOOD_SCRIPTS = (
    "run = lambda files: files",
    "if True:\n    def run(files): return files\nelse:\n    from elsewhere import run",
    "try:\n    import broken\nexcept SyntaxError:\n    pass\ndef run(files, threshold=1, *, size=3): return files",
    "globals()['r' + 'un'] = lambda files: files",
    "a, (run, b) = 1, (lambda files: files, 2)",
    "def run(*files): return files[0]",
    "import functools\n@functools.lru_cache\ndef other(): pass\ndef run(files, context): return files",
)


@pytest.mark.parametrize("script", GOOD_SCRIPTS)
def test_unusual_scripts_are_accepted(workplace, script):
    workplace.data(2)
    workplace.write({"code/broken.py": "def (", "code/unused.py": "def ("})
    job = workplace.job(script)
    assert workplace.command("validate", job.file).exit_status == 0
    assert job.run().items == (2, 2, 0)


OLD_PYTHON = """#!/bin/bash
# Runs the code after `-c` like an old interpreter.
exec {python} -c 'import sys
sys.version_info, sys.version, sys.argv = (3, 8, 2), "3.8.2 (default)", sys.argv[1:]
exec(sys.argv[0])' "${{@:6}}"
"""
INTERPRETERS = {
    "old": (OLD_PYTHON, "Python 3.10 or newer is needed, and this is 3.8.2"),
    "shell": (
        "#!/bin/sh\necho I am a shell >&2\n",
        "this Python does not work: it ended with exit status: 0: I am",
    ),
    "text": ("no program", "this Python cannot be started"),
}


@pytest.mark.parametrize("what", INTERPRETERS)
def test_unsuitable_interpreter_is_rejected(workplace, tmp_path, what):
    workplace.data(1)
    text, said = INTERPRETERS[what]
    interpreter = tmp_path / "python"
    interpreter.write_text(text.format(python=sys.executable))
    interpreter.chmod(0o755)
    job = workplace.job("def run(files): return files", environment=str(interpreter))
    assert said in refusals(workplace, job)


def test_tables_need_pandas_in_the_interpreter_of_the_job(workplace, tmp_path):
    workplace.write({"data/t.csv": "a\n1\n"})
    venv.create(tmp_path / "bare", symlinks=True)
    bare = tmp_path / "bare" / "bin" / "python"
    inputs = [{"name": "t", "type": "tabular", "path": "data/t.csv"}]
    job = workplace.job("def run(frame): return frame", inputs=inputs, environment=str(bare))
    said = refusals(workplace, job)
    assert f"inputs of type tabular need numpy and pandas: {bare} -m pip install numpy pandas" in said
    # Like the module of a function that gets Arrow tables.
    arrow = workplace.job("__gristmill_arrow__ = True\ndef run(table): ...", inputs=inputs, environment=str(bare))
    assert f"inputs of type tabular need pyarrow: {bare} -m pip install pyarrow" in refusals(workplace, arrow)
    job = workplace.job("def run(frame): return frame", inputs=inputs, environment=str(bare))
    # The check finds it like the processes of the job.
    workplace.write({"elsewhere/numpy.py": "", "elsewhere/pandas.py": ""})
    path = {"PYTHONPATH": str(workplace.folder / "elsewhere")}
    job.file.write_text(json.dumps({**job.settings, "environment_variables": path}))
    assert workplace.command("validate", job.file).exit_status == 0


@pytest.mark.parametrize("hiding", ["pandas.py", "numpy/__init__.py"])
def test_module_that_hides_a_package_is_rejected(workplace, hiding):
    """Scripts find files beside them before packages, and so do pandas and the code that reads tables."""
    workplace.write({"data/t.csv": "a\n1\n", f"code/{hiding}": "VALUE = 1\n"})
    inputs = [{"name": "t", "type": "tabular", "path": "data/t.csv"}]
    said = refusals(workplace, workplace.job("def run(frame): return frame", inputs=inputs))
    assert f"code/{hiding}: it hides the package {hiding[:5]}" in said, said


def test_output_inside_an_input_is_rejected(workplace):
    workplace.data(2)
    for output in ("data", "data/results"):
        assert "the output lies in input data" in refusals(
            workplace, workplace.job("def run(f): return f", output=output)
        )
    assert sorted(path.name for path in (workplace.folder / "data").iterdir()) == ["000.txt", "001.txt"]


def test_output_below_a_file_is_rejected(workplace):
    workplace.data(1)
    workplace.write({"file": "x"})
    said = refusals(workplace, workplace.job("def run(files): return files", output="file/out"))
    assert "file is a file, and no folder can be made there" in said, said


def test_output_on_a_read_only_disk_is_rejected(workplace):
    workplace.data(1)
    (workplace.folder / "disk").mkdir()
    job = workplace.job("def run(files): return files", output="disk/out")
    for options, said in (("ro", "cannot be written to"), ("size=64k", "is full")):
        run = f"{workplace.executable} run {job.file.name} 2> said; echo $? >> said"
        script = f"mount -t tmpfs -o {options} tmpfs disk && {run}"
        namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
        subprocess.run(namespace, cwd=workplace.folder, env=workplace.environment, check=True, timeout=60)
        text = (workplace.folder / "said").read_text()
        assert said in text and text.endswith("\n2\n"), text


def test_checked_script_is_not_checked_again(workplace, sqlite, tmp_path):
    """Each state of script and interpreter is checked once: the second run starts no interpreter for the check, and the
    second `enqueue` starts none at all."""
    workplace.data(1)
    counted = tmp_path / "python"
    counted.write_text(f'#!/bin/sh\necho x >> {tmp_path}/starts\nexec {sys.executable} "$@"\n')
    counted.chmod(0o755)

    def starts(run):
        before = os.path.getsize(tmp_path / "starts") if (tmp_path / "starts").exists() else 0
        run()
        return (os.path.getsize(tmp_path / "starts") - before) // 2

    def in_job(script):
        job = workplace.job(script, environment=str(counted))
        return lambda: job.run("--fresh")

    assert [starts(in_job("def run(files): return files")) for _ in range(2)] == [2, 1]
    assert starts(in_job("def run(files): return [1]")) == 2
    unseen = workplace.job("def run(files): return [2]", environment=str(counted))
    # Each open job has an output of its own.
    enqueued = [starts(lambda to=to: sqlite.enqueue(unseen, "--set", f"output={to}")) for to in ("one", "other")]
    assert enqueued == [1, 0]


def test_output_in_a_missing_bucket_is_rejected(workplace, sqs, components):
    workplace.data(1)
    at = {"AWS_ENDPOINT_URL": components.aws_endpoint}
    missing = workplace.job("def run(files): return files", output=f"s3://{sqs.prefix}-not-there/out")
    assert f"output: nothing can be written to s3://{sqs.prefix}-not-there/out" in refusals(workplace, missing, **at)
    job = workplace.job("def run(files): return files", output=f"s3://{sqs.prefix}/out")
    assert job.run(**at).items == (1, 1, 0)
    objects = components.client("s3").list_objects_v2(Bucket=sqs.prefix, Prefix="out/")["Contents"]
    assert [found["Key"] for found in objects] == ["out/rows.txt"]
    assert "Uploads" not in components.client("s3").list_multipart_uploads(Bucket=sqs.prefix)


URLS = {
    # The field: what is said of a bucket that does not exist, and who uses the URL.
    "output": ("nothing can be written to {url}: its bucket does not exist", "the reducer writes it"),
    "outputs.images": ("nothing can be written to {url}: its bucket does not exist", "the workers write it"),
    "side_inputs.labels": ("{url} cannot be read: it does not exist", "the workers read it"),
}


def job_with_urls(workplace, at):
    """Returns a job with a URL for each of these fields, which begins so and contains the field."""
    output, images, labels = (f"{at}/{field}/x" for field in URLS)
    script = "def run(files): return files"
    return workplace.job(script, output=output, outputs={"images": images}, side_inputs={"labels": labels})


def test_missing_urls_are_rejected_here_and_for_targets(workplace, sqs, components):
    workplace.data(1)
    at = {"AWS_ENDPOINT_URL": components.aws_endpoint}
    missing = f"s3://{sqs.prefix}-not-there"
    job = job_with_urls(workplace, missing)
    refused = sqs.command("enqueue", job.file)
    assert refused.exit_status == 2, str(refused)
    for said in (refusals(workplace, job, **at), refused.stderr):
        for field, (text, _) in URLS.items():
            assert f"{field}: {text.format(url=f'{missing}/{field}/x')}" in said, said

    for field in URLS:
        components.client("s3").put_object(Bucket=sqs.prefix, Key=f"{field}/x/a.txt", Body=b"a")
    there = job_with_urls(workplace, f"s3://{sqs.prefix}").file
    assert workplace.command("validate", there, **at).exit_status == 0
    assert "from this machine" not in sqs.command("enqueue", there, expect=0).stderr


def test_urls_that_only_this_machine_may_not_use_are_warnings_for_targets(workplace, sqlite):
    """The roles of a target may have rights and networks that the machine of `enqueue` lacks."""
    workplace.data(1)
    job = job_with_urls(workplace, "s3://theirs")

    def answering(status, code):
        answer = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        return HttpServer(lambda _: (status, {"Content-Type": "application/xml"}, answer))

    def warnings(status, code):
        with answering(status, code) as server:
            # Each open job has an output of its own.
            own = ["--set", f"append_row_file_name=rows-{status}.txt"]
            warned = sqlite.command("enqueue", job.file, *own, expect=0, AWS_ENDPOINT_URL=server.url).stderr
        return [line for line in warned.splitlines() if line.startswith("warning: from this machine, ")]

    with answering(403, "AccessDenied") as server:
        said = refusals(workplace, job, AWS_ENDPOINT_URL=server.url)
        assert [field for field in URLS if f"{field}: " not in said] == [], said
    for line, (field, (_, who)) in zip(warnings(400, "InvalidRequest"), URLS.items(), strict=True):
        assert f"s3://theirs/{field}/x" in line and line.endswith(f"; {who}"), line
    # Enqueuers need no right to write where the roles of the target write.
    (line,) = warnings(403, "AccessDenied")
    assert "s3://theirs/side_inputs.labels/x" in line and "access denied" in line, line


def test_target_rejects_a_script_that_cannot_run(workplace, sqlite):
    workplace.data(1)
    job = workplace.job("def run(files) return files")
    for command in ("enqueue", "run"):
        ended = sqlite.command(command, job.file)
        assert ended.exit_status == 2 and "entry.py:1: " in ended.stderr, str(ended)
        assert "GRISTMILL_PYTHON names another interpreter" in ended.stderr
    assert "test-2" not in sqlite.command("jobs").stdout


def test_target_rejects_a_retry_with_a_script_that_cannot_run(workplace, sqlite):
    workplace.data(2)
    first = sqlite.run(workplace.job("def run(files): raise ValueError", mini_batch_size=2), expect=42)
    broken = "def run(files) return files"
    workplace.write({"code/entry.py": broken, "mended/entry.py": broken})
    for arguments in ([], ["--mini-batch", "0", "--source-directory", "mended"]):
        ended = sqlite.command("retry", first.job_id, *arguments)
        assert ended.exit_status == 2 and "entry.py:1: " in ended.stderr, str(ended)
