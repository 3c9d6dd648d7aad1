"""The built page: what the sources give, small, and without anything that could turn data into markup."""

import filecmp
import gzip
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "services" / "portal" / "web"
FIRST_LOAD_MAX = 120_000


@pytest.mark.xdist_group("page")
def test_committed_page_is_built_from_the_sources(tmp_path: Path) -> None:
    built = tmp_path / "dist"
    subprocess.run([ROOT / "scripts" / "build-page", built], check=True, capture_output=True, text=True)
    names = sorted(str(path.relative_to(built)) for path in built.rglob("*") if path.is_file())
    committed = sorted(str(path.relative_to(WEB / "dist")) for path in (WEB / "dist").rglob("*") if path.is_file())
    assert names == committed, "run scripts/build-page and commit services/portal/web/dist"
    different = filecmp.cmpfiles(built, WEB / "dist", names, shallow=False)
    assert different[1:] == ([], []), "run scripts/build-page and commit services/portal/web/dist"


def test_first_load_is_small() -> None:
    files = [WEB / "dist" / "index.html", *(WEB / "dist" / "assets").iterdir()]
    assert sum(len(gzip.compress(file.read_bytes())) for file in files) < FIRST_LOAD_MAX


def test_page_has_nothing_inline_and_nothing_of_others() -> None:
    page = (WEB / "dist" / "index.html").read_text()
    assert re.findall(r'<script type="module" src="/assets/app-\w+\.js"></script>', page) == re.findall(
        r"<script.*", page
    )
    assert re.findall(r'<link rel="stylesheet" href="/assets/style-\w+\.css">', page) != []
    assert "style=" not in page and "<style" not in page and "://" not in page
    for asset in (WEB / "dist" / "assets").iterdir():
        text = asset.read_text()
        # `gristmill report` places both in one document.
        assert "</script" not in text.lower() and "</style" not in text.lower(), asset
        links = set(re.findall(r"https?://[\w./-]+", text))
        # The name of a namespace, not an address that anything opens.
        assert {link for link in links if not link.startswith("http://www.w3.org/")} == set(), asset


def test_sources_never_make_markup_from_text() -> None:
    sources = list((WEB / "src").rglob("*.ts*"))
    assert len(sources) > 20
    for source in sources:
        text = source.read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser", text
        ), source


def test_licenses_of_the_packages_are_in_the_page() -> None:
    licenses = (WEB / "dist" / "licenses.txt").read_text()
    for package in ("preact", "@preact/signals", "uplot"):
        assert f"{package} " in licenses
    assert licenses.count("Permission is hereby granted") >= 3
