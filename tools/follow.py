"""Follow a guide: run its Python blocks in order, in this folder, and compare what they print.

usage: python tools/follow.py GUIDE.md
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def main(guide: Path) -> int:
    """Return 0 if every block prints what is shown below it."""
    blocks = [(found[1], found[2]) for found in BLOCK.finditer(guide.read_text())]
    names: dict[str, object] = {}
    for number, (language, text) in enumerate(blocks):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, str(guide), "exec"), names)
        shown = blocks[number + 1] if number + 1 < len(blocks) else ("", "")
        if shown[0] == "text" and shown[1].strip() != printed.getvalue().strip():
            print(f"{guide} shows\n{shown[1]}\nand this was printed\n{printed.getvalue()}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
