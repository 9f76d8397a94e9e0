"""Print the lowest versions that pyproject.toml allows, as requirements for pip.

usage: python tools/lowest.py NAME...
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
allowed = dict(re.match(r"([\w-]+)>=([\d.]+)", each).groups() for each in project["dependencies"])
print(*(f"{name}=={allowed[name]}" for name in sys.argv[1:]))
