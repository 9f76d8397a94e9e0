"""What `import icestream` offers, in a process that has imported nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import icestream as ice


def reported(program: str) -> Any:
    """Return what a fresh process prints, as JSON."""
    command = [sys.executable, "-c", f"import json\nimport icestream as ice\n{program}"]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def test_dir_lists_the_api() -> None:
    names = reported("import icestream.core.times\nprint(json.dumps(dir(ice)))")
    public = [name for name in names if not name.startswith("__")]
    assert public == sorted([*ice.__all__, "core"])
    assert {"__doc__", "__file__", "__name__"} <= set(names)


def test_every_name_of_the_api_is_there() -> None:
    assert [name for name in ice.__all__ if not hasattr(ice, name)] == []
    assert not hasattr(ice, "nothing")


def test_sql_is_the_function_whatever_is_imported() -> None:
    program = "import icestream.sql.ddl\nprint(json.dumps([ice.sql.__name__, callable(ice.sql)]))"
    assert reported(program) == ["sql", True]
