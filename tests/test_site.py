from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import icestream as ice

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MKDOCS = ROOT / ".docs" / "bin" / "mkdocs"
#: pages that the site has from elsewhere, as tools/site.py says
FROM_ELSEWHERE = {"changelog.md": "CHANGELOG.md", "security.md": "SECURITY.md"}


def in_navigation() -> set[str]:
    text = (ROOT / "mkdocs.yml").read_text()
    return set(re.findall(r"([\w/.-]+\.md)$", text[text.index("\nnav:") :], re.MULTILINE))


def test_every_page_is_in_the_navigation_or_listed_with_the_decisions() -> None:
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    decisions = {page for page in pages if page.startswith("decisions/0")}
    assert in_navigation() == pages - decisions | set(FROM_ELSEWHERE)


def test_pages_from_elsewhere_are_there() -> None:
    said = (ROOT / "tools" / "site.py").read_text()
    for page, source in FROM_ELSEWHERE.items():
        assert f'"{page}": "{source}"' in said
        assert (ROOT / source).is_file()


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    shown = set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))
    for name in ice.__all__:
        home = getattr(ice, name).__module__
        assert f"{home}.{name}" in shown or home in shown, name


def test_every_figure_is_in_the_gallery_or_a_page() -> None:
    text = "".join(path.read_text() for path in DOCS.rglob("*.md"))
    for figure in (DOCS / "figures").rglob("*.[ps][nv]g"):
        assert figure.name in text


@pytest.mark.slow
@pytest.mark.skipif(not MKDOCS.exists(), reason="`make docs` installs what builds the site")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [str(MKDOCS), "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "reference" / "streams.html").exists()
