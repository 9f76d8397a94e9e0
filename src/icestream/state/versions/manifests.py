"""Manifests: which segments of a shard are live, in layers that commits refer to.

Idea: a manifest is a list of layers, oldest first. A layer has the segments that some versions
added and that were live at its end, and the older ones that were released meanwhile. A commit names
the layers of a few shards; the segments added since are in the commits after it. Layers written by
one version are one file.

Invariants:
1. A layer reads back as it was written (`test_parity_live_segments_beside_a_plain_recount`), and a
   flipped byte is a `DamageError` that names the file (`test_damage_in_a_layer_is_named`).

References: `docs/formats/commits.md`, decision 66.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from icestream.core.errors import DamageError
from icestream.state.files import Files
from icestream.state.log.format import file_name, whole

#: folder of the files with layers
MANIFESTS = "manifests"

Rows = npt.NDArray[np.void]
Ints = npt.NDArray[np.int64]

#: what is known of a segment; its name follows from ordinal and attempt, its expiry is apart
SEGMENT = np.dtype(
    {
        "names": [
            "ordinal", "records", "attempt", "bytes", "checksum", "version", "lifetime", "shared",
        ],
        "formats": ["<u4", "<u4", "<u8", "<u8", "<u8", "<u8", "<u2", "u1"],
        "offsets": [0, 4, 8, 16, 24, 32, 40, 42],
        "itemsize": 44,
    }
)  # fmt: skip
#: a segment of an older layer that is live no more, and the version that added it
RELEASED = np.dtype([("ordinal", "<u4"), ("version", "<u8")])

#: magic, last version before it, its last version, segments, released, bytes of names, has begins
_HEAD = struct.Struct("<8sQQIIII")
_MAGIC = b"ICELAYER"
_EXPIRY = np.dtype("<i8")


@dataclass(frozen=True)
class Layer:
    """Where a layer is, as a commit refers to it."""

    #: name of the file in `manifests/`
    name: str
    offset: int
    bytes: int
    checksum: int

    def to_json(self) -> list[Any]:
        return [self.name, self.offset, self.bytes, f"{self.checksum:016x}"]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Layer:
        """Return what `to_json` wrote; ValueError if it is not valid."""
        name, offset, size, checksum = value
        if not isinstance(checksum, str) or len(checksum) != 16:
            msg = f"{str(checksum)[:80]!r} is not a checksum"
            raise ValueError(msg)
        return cls(file_name(name), whole(offset, 0), whole(size, _HEAD.size), int(checksum, 16))


@dataclass(frozen=True)
class ShardManifest:
    """The layers of a shard at the end of a version."""

    shard: int
    layers: tuple[Layer, ...]

    def to_json(self) -> dict[str, Any]:
        return {"shard": self.shard, "layers": [each.to_json() for each in self.layers]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ShardManifest:
        """Return what `to_json` wrote; ValueError if it is not valid."""
        return cls(whole(value["shard"], -1), tuple(map(Layer.from_json, value["layers"])))


@dataclass(frozen=True)
class LayerContent:
    """The segments of a layer, in columns."""

    #: it has what the versions after `since` did, up to `until`
    since: int
    until: int
    rows: Rows
    expiry: Ints
    #: earliest times of events, if these are segments of events
    begins: Ints | None
    released: Rows
    #: lifetime classes that rows refer to
    lifetimes: Sequence[str]

    def encoded(self) -> bytes:
        names = "\n".join(self.lifetimes).encode()
        sizes = (len(self.rows), len(self.released), len(names), self.begins is not None)
        parts = [
            _HEAD.pack(_MAGIC, self.since, self.until, *sizes),
            names,
            self.rows.tobytes(),
            self.expiry.astype(_EXPIRY, copy=False).tobytes(),
            b"" if self.begins is None else self.begins.astype(_EXPIRY, copy=False).tobytes(),
            self.released.tobytes(),
        ]
        return b"".join(parts)

    @classmethod
    def decoded(cls, data: bytes) -> LayerContent:
        """Return what `encoded` returned; ValueError if it did not return this."""
        magic, since, until, rows, released, names, begins = _HEAD.unpack_from(data)
        sizes = (
            names,
            rows * SEGMENT.itemsize,
            rows * _EXPIRY.itemsize,
            rows * _EXPIRY.itemsize * begins,
            released * RELEASED.itemsize,
        )
        if magic != _MAGIC or begins > 1 or len(data) != _HEAD.size + sum(sizes):
            msg = "this is not a layer"
            raise ValueError(msg)
        parts, at = [], _HEAD.size
        for size in sizes:
            parts.append(data[at : at + size])
            at += size
        found = np.frombuffer(parts[1], SEGMENT)
        lifetimes = parts[0].decode().split("\n")
        if rows and int(found["lifetime"].max()) >= len(lifetimes):
            msg = "a segment has a lifetime class that the layer does not name"
            raise ValueError(msg)
        return cls(
            since,
            until,
            found,
            np.frombuffer(parts[2], _EXPIRY),
            np.frombuffer(parts[3], _EXPIRY) if begins else None,
            np.frombuffer(parts[4], RELEASED),
            lifetimes,
        )


def layers_file(name: str, contents: Sequence[LayerContent]) -> tuple[list[Layer], bytes]:
    """Return the places of the layers of manifests in a file of a name, and its bytes."""
    layers, parts, at = [], [], 0
    for content in contents:
        data = content.encoded()
        layers.append(Layer(name, at, len(data), xxhash.xxh3_64_intdigest(data)))
        parts.append(data)
        at += len(data)
    return layers, b"".join(parts)


def read_layer(files: Files, root: str, layer: Layer) -> LayerContent:
    """Return a layer of a manifest; DamageError if it is missing or damaged."""
    path = f"{root}/{MANIFESTS}/{layer.name}"
    try:
        with closing(files.open(path)) as file:
            data = file.read_at(layer.offset, layer.bytes)
    except FileNotFoundError:
        raise DamageError(path, "a file of the manifest is missing") from None
    if len(data) != layer.bytes or xxhash.xxh3_64_intdigest(data) != layer.checksum:
        raise DamageError(path, "a layer does not match its checksum in the commit")
    try:
        return LayerContent.decoded(data)
    except (ValueError, struct.error) as error:
        raise DamageError(path, str(error)) from error
