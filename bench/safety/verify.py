"""Every single flipped byte of a checkpoint is found: every position, every kind of file.

Idea: small checkpoints of every kind of state are created. Of each kind of file in them, one file
    is
chosen (in a small run one of all checkpoints together, except segments, which differ), and one bit
of each byte is flipped in turn; the check by `icestream state verify` must find it. For some of the
positions, spread over the file, the whole command runs on the flipped checkpoint and must end with
its exit code for damage.

Left out, because no query reads them: `history/`, which is for people; files that no version lists,
which the next run removes; and `repaired/`, whose files are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Measurement, ProgressLog, Size
from icestream.core.errors import IcestreamError
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.verify import DELIVERED, check_mark, check_segment, verify
from icestream.runtime.version.end_mark import MARK
from icestream.state.files import LocalFiles
from icestream.state.versions.commits import IDENTITY, PLAN, RESULTS, SEGMENTS
from icestream.state.versions.live_segments import LiveSegments
from tests.faults.changed_files import FlippedFiles
from tests.fixtures.checkpoints import KINDS, make

#: the whole command runs every this many positions, at least once in the middle of each file
EVERY = {Size.SMALL: 4999, Size.FULL: 499}


@dataclass(frozen=True)
class VerifyTarget:
    """A file, its kind, and the check that the command applies to it."""

    kind: str
    path: str
    check: Callable[[Checkpoint], object]


def targets(state: str, root: str) -> Iterator[VerifyTarget]:
    """Yield one file of each kind in a checkpoint."""
    checkpoint = Checkpoint(root)
    last = checkpoint.commit()
    yield VerifyTarget("plan", f"{root}/{PLAN}", lambda at: (at.store.plan(), at.state_schema))
    for number in (checkpoint.versions[0], last.version):
        what = "first commit" if number == 1 else "commit"
        path = checkpoint.store.path(number)
        yield VerifyTarget(what, path, partial(_load, version=number))
    for path in sorted(LiveSegments.at(checkpoint.store, last.version).layer_files())[-1:]:
        check = partial(_live, version=last.version)
        yield VerifyTarget("layers", f"{root}/{path}", check)
    classes = {each.lifetime: each.info for each in checkpoint.live(last.version)}
    for lifetime, info in classes.items():
        yield VerifyTarget(
            f"segment: {state}, {lifetime}",
            f"{root}/{SEGMENTS}/{info.name}",
            partial(check_segment, folder=SEGMENTS, info=info),
        )
    for what, infos in (("results", last.results), ("late events", last.late)):
        for info in infos[:1]:
            path = f"{root}/{RESULTS}/{info.name}"
            yield VerifyTarget(what, path, partial(check_segment, folder=RESULTS, info=info))
    checkpoint.store.make_identity("0" * 32)
    yield VerifyTarget("identity", f"{root}/{IDENTITY}", lambda at: at.store.identity(""))
    mark = f"{root}/{DELIVERED}/0/{last.version:012d}"
    LocalFiles().put(mark, MARK)
    yield VerifyTarget("mark of delivery", mark, partial(check_mark, path=mark))


def _load(checkpoint: Checkpoint, version: int) -> object:
    return checkpoint.store.load(version)


def _live(checkpoint: Checkpoint, version: int) -> object:
    return checkpoint.live(version)


def missed(target: VerifyTarget, root: str, every: int) -> tuple[int, int, list[str]]:
    """Flip each byte of a file; return flips, runs of the whole command, and what was missed."""
    files = FlippedFiles(target.path)
    lost, commands = [], 0
    for place in range(files.size):
        mask = 1 << place % 8
        files.flip(place, mask)
        if not _finds(partial(target.check, Checkpoint(root, files))):
            lost.append(f"byte {place} of {target.path}")
        if place % every == min(every, files.size) // 2:
            commands += 1
            if verify(Checkpoint(root, files), state=False).is_fine:
                lost.append(f"byte {place} of {target.path}, by the command")
        files.flip(place, mask)
    return files.size, commands, lost


def _finds(check: Callable[[], object]) -> bool:
    try:
        check()
    except IcestreamError:
        return True
    return False


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Flip and count."""
    folder = scratch(workspace(), "verify")
    progress.plan(len(KINDS))
    flips: dict[str, int] = {}
    commands, lost = 0, []
    for state in KINDS:
        progress.step(state)
        root = make(state, str(Path(folder, state)))
        for target in targets(state, root):
            if size is Size.SMALL and target.kind in flips:
                continue
            count, runs, missing = missed(target, root, EVERY[size])
            flips[target.kind] = flips.get(target.kind, 0) + count
            commands += runs
            lost += missing
    for story in lost[:5]:
        progress.note(story)
    found = sum(flips.values()) - len(lost)
    return Measurement(
        {
            "flips": sum(flips.values()),
            "kinds": flips,
            "commands": commands,
            "missed": len(lost),
            "found_percent": 100 * found / max(1, sum(flips.values())),
        },
        (
            Bar.at_least("found_percent", 100, 100 * found / max(1, sum(flips.values()))),
            Bar.at_most("missed", 0, len(lost)),
        ),
    )


BENCH = Bench(
    "verify",
    "icestream state verify finds every flipped byte of every kind of file",
    measure,
)
