"""Note the modules of the package that a process imports; Python runs this at its start."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class ImportNotes:
    """A finder that finds nothing, and notes what is looked for."""

    @staticmethod
    def find_spec(
        name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Append the name of a module of the package to the file of notes."""
        notes = os.environ.get("ICESTREAM_LOADED_MODULES")
        if notes and name.startswith("icestream."):
            with open(notes, "a", encoding="ascii") as file:
                file.write(f"{name}\n")
        return None


sys.meta_path.insert(0, ImportNotes)
