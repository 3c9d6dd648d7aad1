"""The container images: their content, and a whole fleet of them on a private network."""

import hashlib
import json
import os
import re
import subprocess

import pytest

from containers import Container, Engine, Fleet
from harness import ROOT, go, wait_until, write_wheel

# One process runs all of these, so that there is one engine; creating a base and the images takes a while.
pytestmark = [pytest.mark.xdist_group("images"), pytest.mark.timeout(900)]

BASE = "gristmill-base"


def script(name: str, *arguments: object) -> str:
    """Returns the last line that a script of the repository prints."""
    ended = subprocess.run([ROOT / "scripts" / name, *arguments], capture_output=True, text=True)
    assert ended.returncode == 0, f"{name}\n{ended.stdout}{ended.stderr}"
    return ended.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def engine(components):
    """An engine with both images of this build, and the worker on another base."""
    engine = Engine(components)
    # Both take a minute on a new machine, one of the network and one of the processor.
    bill = subprocess.Popen([ROOT / "scripts/sbom"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    base = script("base-image", BASE)
    printed, _ = bill.communicate()
    assert bill.returncode == 0, printed.decode()
    with_gpu = f"{BASE}:{engine.tag}-cuda"
    build(engine, with_gpu, f"FROM {base}\nENV NVIDIA_VISIBLE_DEVICES=all\nRUN touch /cuda\n")
    wheel = os.environ.get("GRISTMILL_WHEEL") or script("wheel", "--debug")
    script("images", "--tag", engine.tag, "--base", base, "--cuda", with_gpu, "--wheel", wheel)
    yield engine
    engine.close()


def build(engine: Engine, image: str, dockerfile: str) -> None:
    """Builds an image from a few lines."""
    command = [ROOT / "scripts/docker", "build", "--network=host", "--tag", image, "-"]
    built = subprocess.run(command, input=dockerfile, env=engine.environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr


@pytest.fixture
def fleet(engine, components, workplace, sqs):
    fleet = Fleet(engine, components, workplace.folder, sqs.settings["queue"], sqs.settings["store"])
    yield fleet
    fleet.close()


def nodes(workplace) -> dict[str, set[str]]:
    """Returns the files that each machine has started."""
    begun: dict[str, set[str]] = {}
    for fact in workplace.recorded("begun"):
        begun.setdefault(fact["node"].partition("-")[0], set()).add(fact["file"])
    return begun


def stop(container: Container) -> subprocess.Popen[bytes]:
    """Starts `docker stop`, which kills after two minutes; the caller waits."""
    return subprocess.Popen(
        [ROOT / "scripts/docker", "stop", "--time=120", container.id], env=container.engine.environment
    )


def test_docker_stop_drains_a_worker_and_orphans_are_reaped(workplace, sqs, fleet):
    workplace.data(10)
    orphan = """
        import os, subprocess
        from recorder import record, recorded, wait_for
        def init():
            # It has its own session and outlives the shell that started it.
            shell = 'sh -c "exec sleep 0.1" & echo $!'
            child = subprocess.run(["setsid", "sh", "-c", shell], stdout=subprocess.PIPE, text=True)
            record("orphan", child=int(child.stdout))
        def run(files, context):
            name = os.path.basename(files[0])
            record("begun", file=name, node=context.node_id)
            wait_for(lambda: recorded("go"))
            return [name]
    """
    fleet.start("reducer", "reducer")
    leaving = fleet.start("worker", "leaving")
    job_id = fleet.command("enqueue", workplace.job(orphan).file).splitlines()[-1]
    wait_until(lambda: workplace.recorded("begun"), "work")
    leaving.wait_until_healthy()
    (fact,) = workplace.recorded("orphan")
    assert leaving.python("print(open('/proc/1/comm').read())") == "tini"
    there = f"import os; print(os.path.exists('/proc/{fact['child']}'))"
    wait_until(lambda: leaving.python(there) == "False", "the end of an orphan, which only the first process can take")

    stopping = stop(leaving)
    # The stopping node immediately returns its unstarted mini-batches to the others.
    wait_until(lambda: sqs.waiting("tasks") == 9, "returned mini-batches in the queue")
    fleet.start("worker", "staying")
    wait_until(lambda: "staying" in nodes(workplace), "work elsewhere")
    go(workplace)
    assert stopping.wait() == 0
    assert leaving.state["ExitCode"] == 0, leaving.log
    result = sqs.wait_for_end(job_id)
    assert sqs.output(result).decode().splitlines() == [f"{position:03}.txt" for position in range(10)]
    assert len(nodes(workplace)["leaving"]) == 1
    assert len(workplace.recorded("begun")) == 10, "nothing ran twice"


@pytest.mark.parametrize("role", ["gristmill", "gristmill-worker"])
def test_image_contains_bill_of_materials_and_licences(engine, role, tmp_path):
    container = engine.docker("create", f"{role}:{engine.tag}").splitlines()[-1]
    engine.docker("cp", f"{container}:/usr/share/doc/gristmill/.", tmp_path)
    engine.docker("rm", "--volumes", container)
    licences = {path.name for path in tmp_path.iterdir()} - {"gristmill.cdx.json"}
    assert licences == {"LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY-NOTICES"}
    bill = json.loads((tmp_path / "gristmill.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["name"] == "gristmill"
    listed = {(component["name"], component["version"]) for component in bill["components"]}
    locked = set(re.findall(r'name = "(.*)"\nversion = "(.*)"', (ROOT / "Cargo.lock").read_text()))
    assert listed <= locked
    names = {name for name, _ in listed}
    # The executable contains no test dependencies.
    assert {"tokio", "lapin", "aws-sdk-sqs", "object_store", "reducer"} <= names and "proptest" not in names
    assert all(component.get("licenses") for component in bill["components"])


def test_only_the_caches_are_writable(engine):
    program = """
import os
for folder in ("/", "/etc", "/opt/gristmill", "/usr/local", "/var/cache/gristmill", "/tmp"):
    try:
        open(folder + "/probe", "w")
        print(folder, "written", os.getuid())
    except OSError as error:
        print(folder, type(error).__name__)
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")])
"""
    for read_only, refusal in ((["--read-only"], "OSError"), ([], "PermissionError")):
        printed = engine.docker(
            *("run", "--rm", "--network=none", "--cap-drop=ALL", *read_only, "--entrypoint=python"),
            *(f"gristmill-worker:{engine.tag}", "-c", program),
        )
        assert printed.splitlines()[-7:] == [
            *(f"{folder} {refusal}" for folder in ("/", "/etc", "/opt/gristmill", "/usr/local")),
            *(f"{folder} written 10001" for folder in ("/var/cache/gristmill", "/tmp")),
            "['0000000000000000']",
        ]


@pytest.mark.parametrize("way", ["environment of the job", "derived image"])
def test_packages_of_users_are_importable(engine, workplace, way):
    """Runs a whole job in one container without a network."""
    package = write_wheel(workplace.folder, "greeting", "TEXT = 'hello'\n")
    image, settings = f"gristmill-worker:{engine.tag}", {}
    if way == "derived image":
        digest = hashlib.sha256(package.read_bytes()).hexdigest()
        workplace.write({"requirements.txt": f"./{package.name} --hash=sha256:{digest}\n"})
        image = f"gristmill-worker:{engine.tag}-derived"
        engine.docker(
            *("build", "--network=none", f"--file={ROOT}/infra/images/derived.Dockerfile", f"--tag={image}"),
            *(f"--build-arg=WORKER=gristmill-worker:{engine.tag}", workplace.folder),
        )
        assert engine.inspect("image", image)["Config"]["User"] == "10001:10001"
    else:
        workplace.write({"code/requirements.txt": f"{package}\n"})
        settings["environment"] = "code/requirements.txt"
    workplace.data(3)
    job = workplace.job("import greeting\ndef run(files): return [greeting.TEXT] * len(files)", **settings)
    workplace.folder.chmod(0o777)
    engine.docker(
        *("run", "--rm", "--network=none", "--read-only", "--cap-drop=ALL"),
        *(f"--volume={workplace.folder}:{workplace.folder}", image, "run", job.file),
    )
    assert (workplace.folder / "output/rows.txt").read_text() == "hello\n" * 3


def test_gpu_image_is_the_worker_on_its_own_base(engine):
    command = ["--network=none", "--entrypoint=sh", f"gristmill-worker:{engine.tag}-cuda"]
    printed = engine.docker("run", "--rm", *command, "-c", "ls /cuda && gristmill worker --help")
    assert "/cuda\n" in printed and "--process-count" in printed
