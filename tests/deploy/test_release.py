"""scripts/release, with stand-ins for docker, syft, grype, helm, cosign and gh."""

import hashlib
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harness import ROOT

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the stand-in for the engine is one for amd64")

VERSION = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
REGISTRY = "ghcr.io/our-team/gristmill"
TOOLS = ("docker", "syft", "grype", "helm", "cosign", "gh")
SECRET = "-----a private key-----"


class Release:
    """A folder with the packages of this machine, as `scripts/release packages` leaves it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "dist"
        self.stand_ins = folder / "bin"
        for made in (self.folder, self.stand_ins):
            made.mkdir()
        for tool in TOOLS:
            (self.stand_ins / tool).symlink_to(ROOT / "tests/support/release_stand_ins.py")
        for processor in ("x86_64", "aarch64"):
            self.write(f"gristmill-{VERSION}-cp310-abi3-manylinux_2_34_{processor}.whl")
            self.write(f"gristmill-{VERSION}-{processor}.cdx.json")
            self.write(f"gristmill-{VERSION}-linux-{processor}.tar.gz")
        self.write(f"gristmill_{VERSION}-1_amd64.deb")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GRISTMILL", "COSIGN"))}
        self.environment = {
            **kept,
            "PATH": f"{self.stand_ins}:{os.environ['PATH']}",
            "STAND_INS": str(folder),
            "GRISTMILL_COMPONENTS": str(folder / "components"),
        }
        self.log = folder / "commands"

    def write(self, name: str) -> None:
        (self.folder / name).write_text(name)

    def run(self, *arguments: str, expect: int = 0, **environment: str):
        self.log.write_text("")
        ended = subprocess.run(
            [ROOT / "scripts/release", *arguments, "--to", str(self.folder)],
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == expect, ended.stdout + ended.stderr
        assert SECRET not in ended.stdout + ended.stderr
        return ended

    def images(self) -> None:
        """Images of this machine, and those that a machine of the other architecture has made."""
        self.run("images")
        for image in ("gristmill", "gristmill-worker"):
            (self.folder / f"images/{image}-arm64.tar").write_text(f"{image}:{VERSION}-arm64")
            self.write(f"{image}-{VERSION}-arm64.spdx.json")

    def commands(self, beginning: str) -> list[str]:
        lines = self.log.read_text().replace(f"{self.folder}/", "").splitlines()
        return [line for line in lines if line.startswith(beginning)]


@pytest.fixture
def release(tmp_path) -> Release:
    return Release(tmp_path)


def digest(image: str) -> str:
    return f"sha256:{hashlib.sha256(image.encode()).hexdigest()}"


def test_version_must_be_that_of_the_tag(release):
    assert release.run("version", TAG=f"v{VERSION}").stdout == f"{VERSION}\n"
    assert "The tag is v9.9.9" in release.run("version", TAG="v9.9.9", expect=1).stderr


def test_every_file_that_names_another_version_is_named(tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, clone], check=True)
    shutil.copy(ROOT / "scripts/release", clone / "scripts/release")
    manifest = clone / "Cargo.toml"
    manifest.write_text(manifest.read_text().replace(f'\nversion = "{VERSION}"', '\nversion = "9.9.9"', 1))
    (clone / "CHANGELOG.md").write_text("## [9.9.9]\n\nNotes.\n")
    ended = subprocess.run([clone / "scripts/release", "version"], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "Cargo.toml has version 9.9.9, and these have another:" in ended.stderr
    for line in (
        *(f"infra/kubernetes/chart/Chart.yaml:5:version: {VERSION}", f"Chart.yaml:6:appVersion: {VERSION}"),
        *(f'__version__ = "{VERSION}"', f'prod/terraform.tfvars.example:3:image_tag = "{VERSION}"'),
        *(f":gristmill-{VERSION}", f":gristmill_{VERSION}", f":gristmill-worker:{VERSION}", f":--tag {VERSION}"),
        f'version = "{VERSION}"',
    ):
        assert line in ended.stderr, ended.stderr
    others = [line for line in ended.stderr.splitlines() if VERSION in line]
    for file in {re.match(r"[^:]*?(?=:|-\d)", line)[0] for line in others}:
        (clone / file).write_text((clone / file).read_text().replace(VERSION, "9.9.9"))
    subprocess.run([clone / "scripts/release", "version"], check=True, capture_output=True)


def test_images_are_built_from_the_wheel_and_described(release):
    release.run("images", BASE_IMAGE="debian@sha256:0123")
    assert all("--build-arg BASE=debian@sha256:0123" in line for line in release.commands("docker build"))
    built = release.commands("docker build")
    assert len(built) == 2 and all("--build-arg DIST=ready" in line for line in built)
    for image in ("gristmill", "gristmill-worker"):
        assert (release.folder / f"images/{image}-amd64.tar").read_text() == f"{image}:{VERSION}-amd64"
        assert (release.folder / f"{image}-{VERSION}-amd64.spdx.json").exists()


def test_scan_looks_at_everything_and_fails_if_one_has_a_vulnerability(release):
    assert "There is no *.spdx.json" in release.run("scan", expect=1).stderr
    release.images()
    for fails in ("", "grype dir:.", f"gristmill-worker-{VERSION}-amd64.spdx.json"):
        ended = release.run("scan", FAILS=fails, expect=bool(fails))
        assert len(release.commands("grype")) == 5, "the dependencies, and two images for two architectures"
        assert all(line.endswith("--only-fixed --fail-on high") for line in release.commands("grype"))
        assert ("Serious vulnerabilities" in ended.stderr) == bool(fails), fails


def test_incomplete_release_is_not_created_and_a_failed_push_leaves_nothing_to_sign(release):
    release.images()
    assert "There is no *.tgz" in release.run("publish", expect=1).stderr
    assert release.commands("gh release create") == []
    release.run("push", "--registry", REGISTRY, FAILS="helm push", expect=1)
    assert 'run "push" first' in release.run("sign", SIGN_WITH="oidc", expect=1).stderr


def test_push_prints_the_digests_and_everything_pushed_is_signed_by_them_with_a_key_alone(release):
    release.images()
    pushed = release.run("push", "--registry", "ghcr.io/Our-Team/Gristmill/")
    assert pushed.stdout.splitlines() == [
        f"gristmill={digest(f'{REGISTRY}/gristmill:{VERSION}')}",
        f"gristmill-worker={digest(f'{REGISTRY}/gristmill-worker:{VERSION}')}",
        f"chart=sha256:{'c' * 64}",
    ]
    assert len(release.commands("docker push")) == 4
    name = f"{REGISTRY}/gristmill-worker:{VERSION}"
    assert f"docker buildx imagetools create --tag {name} {name}-amd64 {name}-arm64" in release.commands("docker")
    assert release.commands("helm push") == [f"helm push gristmill-{VERSION}.tgz oci://{REGISTRY}/charts"]

    assert "Not signed: SIGN_WITH names no key" in release.run("sign").stderr
    assert release.commands("cosign") == []
    assert "Not signed" in release.run("publish").stderr
    assert release.commands("cosign") == [] and not (release.folder / "SHA256SUMS.sigstore.json").exists()
    name = f"{REGISTRY}/gristmill"
    for signer, option in (("oidc", ""), ("env://COSIGN_PRIVATE_KEY", " --key env://COSIGN_PRIVATE_KEY")):
        release.run("sign", SIGN_WITH=signer, COSIGN_PRIVATE_KEY=SECRET)
        signed = release.commands("cosign sign")
        assert len(signed) == 7, "two images for two architectures, two indexes and the chart"
        expected = f"cosign sign --yes{option} {REGISTRY}/\\S+@sha256:[0-9a-f]{{64}}"
        assert all(re.fullmatch(expected, line) for line in signed), signed
        assert release.commands("cosign attest")[0] == (
            f"cosign attest --yes{option} --type spdxjson --predicate gristmill-{VERSION}-amd64.spdx.json "
            f"{name}@{digest(f'{name}:{VERSION}-amd64')}"
        )
        assert len(release.commands("cosign attest")) == 4
        # What is published does not change, so each is the first.
        (release.stand_ins.parent / "release").unlink()
        release.run("publish", SIGN_WITH=signer, COSIGN_PRIVATE_KEY=SECRET)
        (blob,) = release.commands("cosign")
        assert blob == f"cosign sign-blob --yes{option} --bundle SHA256SUMS.sigstore.json SHA256SUMS"


def test_release_has_all_files_and_their_checksums_and_never_changes(release):
    release.images()
    release.run("push", "--registry", REGISTRY)
    release.run("publish", FAILS="release upload", expect=1)
    assert release.commands("gh release edit") == [], "a draft, because its files are missing"
    ended = release.run("publish")
    assert "PACKAGE_INDEX is not set" in ended.stderr
    assert release.commands("gh release create") == [], "the draft is there"
    (upload,) = release.commands("gh release upload")
    files = set(upload.split()[5:])
    listed = {line.split()[1] for line in (release.folder / "SHA256SUMS").read_text().splitlines()}
    assert files == listed | {"SHA256SUMS"}
    assert len(listed) == 2 * 3 + 1 + 4 + 1, "wheels, bills and tarballs; one .deb; bills of images; the chart"
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=release.folder, check=True)
    notes = (release.stand_ins.parent / "notes").read_text()
    assert notes.strip() and "\n## [" not in notes
    links = re.findall(r"\]\((.*?)\)", notes)
    assert links and all(link.startswith("https://") for link in links), links
    assert f"https://github.example/our-team/gristmill/blob/v{VERSION}/SECURITY.md" in links
    assert not re.search(r"^ |[^\n]\n[^\n|#-]", notes, re.MULTILINE), "GitHub would show these line breaks"
    for step in (["publish"], ["push", "--registry", REGISTRY]):
        assert "is published, and does not change" in release.run(*step, expect=1).stderr
    assert release.commands("docker push") == []


def test_missing_tools_are_named(release):
    release.images()
    for tool, step in {"helm": ("push", "--registry", REGISTRY), "gh": ("publish",), "grype": ("scan",)}.items():
        (release.stand_ins / tool).unlink()
        # One that is installed here is found instead.
        if not shutil.which(tool):
            assert f"{tool} is missing" in release.run(*step, expect=1).stderr
