"""What the site has beyond the files in `docs`: pages of the root folder, and a list of decisions.

Used by mkdocs (`hooks` in mkdocs.yml).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {"changelog.md": "CHANGELOG.md", "security.md": "SECURITY.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root folder."""
    for name, source in PAGES.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """List the decisions under the heading of their page."""
    del config, files
    if page.file.src_uri != "decisions/index.md":
        return markdown
    decisions = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    titles = [path.read_text().splitlines()[0].removeprefix("# ") for path in decisions]
    rows = (
        f"- [{title.replace('. ', ': ', 1)}]({path.name})"
        for path, title in zip(decisions, titles, strict=True)
    )
    return markdown + "\n" + "\n".join(rows) + "\n"
