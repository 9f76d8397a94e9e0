"""Build the wheel `icestream-kernels`: the machine code of all known kernels.

Idea: code is compiled into an empty folder, for the processor that all code is made for, and packed
with the folder names of its sources. The wheel requires exactly this version of Icestream and of
numba; where the sources differ nevertheless, the code is not found and kernels are compiled.

usage: python tools/kernel_wheel.py FOLDER [--from CODE-FOLDER]     --from takes code that is there
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import zipfile
from pathlib import Path

import numba

from icestream.kernels.signatures import known_digests

ROOT = Path(__file__).parents[1]
_DOCSTRING = '"""Machine code of Icestream\'s kernels; `icestream` loads it."""\n'


def kernel_wheel(code: Path, folder: Path) -> Path:
    """Pack machine code of the present sources into a wheel; return its path."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    interpreter = f"cp{sys.version_info.major}{sys.version_info.minor}"
    machine = sysconfig.get_platform().rpartition("-")[2]
    tag = f"{interpreter}-{interpreter}-manylinux_2_17_{machine}"
    info = f"icestream_kernels-{version}.dist-info"
    content = {"icestream_kernels/__init__.py": _DOCSTRING.encode()}
    for digest in sorted(known_digests()):
        for path in sorted((code / digest).glob("*.nb[ic]")):
            content[f"icestream_kernels/code/{digest}/{path.name}"] = path.read_bytes()
    if len(content) == 1:
        msg = f"{code} has no machine code of these sources: run `icestream warm`"
        raise SystemExit(msg)
    content[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.4\nName: icestream-kernels\nVersion: {version}\n"
        "Summary: Machine code of Icestream's kernels, so that nothing is compiled\n"
        f"Requires-Dist: icestream=={version}\nRequires-Dist: numba=={numba.__version__}\n"
    ).encode()
    content[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: icestream\nRoot-Is-Purelib: false\nTag: {tag}\n"
    ).encode()
    record = "".join(f"{name},{_hash(data)},{len(data)}\n" for name, data in content.items())
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"icestream_kernels-{version}-{tag}.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in content.items():
            wheel.writestr(name, data)
    return target


def _hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


def main() -> None:
    """Compile all kernels, or take the code of a folder, and write the wheel."""
    match sys.argv[1:]:
        case [folder, "--from", code]:
            print(kernel_wheel(Path(code), Path(folder)))
        case [folder]:
            with tempfile.TemporaryDirectory(prefix="icestream-kernels-") as code:
                command = [sys.executable, "-c", "from icestream.cli import main; main()", "warm"]
                subprocess.run(command, env={**os.environ, "NUMBA_CACHE_DIR": code}, check=True)
                print(kernel_wheel(Path(code), Path(folder)))
        case _:
            raise SystemExit(str(__doc__))


if __name__ == "__main__":
    main()
