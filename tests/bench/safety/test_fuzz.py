from __future__ import annotations

from pathlib import Path

import pytest

from bench.safety.fuzz import findings, tried
from bench.safety.fuzz_targets import FuzzTarget, make_samples, targets
from icestream.core.errors import IcestreamError, InputError
from tests.fixtures.checkpoints import KINDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    make_samples(folder)
    return folder


def test_readers_take_what_is_almost_right(folder: Path) -> None:
    for target in targets(folder):
        if target.name.startswith("state"):
            continue
        wrong = {number: tried(target, number) for number in range(150)}
        assert not {number: why for number, why in wrong.items() if why}, target.name


def test_an_error_that_is_not_ours_is_a_finding() -> None:
    def feed(number: int) -> None:
        if number % 2:
            msg = "not ours"
            raise KeyError(msg)
        msg = "ours"
        raise InputError(msg)

    target = FuzzTarget("numbers", lambda dice: dice.randrange(100), feed)
    wrong = [tried(target, number) for number in range(50)]
    assert None in wrong
    assert "KeyError: 'not ours'" in wrong


def test_an_input_depends_on_its_number_alone(folder: Path) -> None:
    for target in targets(folder):
        assert repr(target.input(7)) == repr(target.input(7))


def test_changed_state_is_listed_as_it_is(folder: Path) -> None:
    """No input of state is refused before its records are read."""
    refused: list[str] = []
    for target in targets(folder):
        if target.name.startswith("state of"):
            for number in range(4):
                try:
                    target.feed(target.input(number))
                except IcestreamError as error:
                    refused.append(str(error))
    assert not [why for why in refused if "this is another segment" in why]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_signed_nonsense_in_any_state_is_an_error_of_ours(kind: str, folder: Path) -> None:
    name = f"state of {kind}, signed"
    target = next(each for each in targets(folder) if each.name == name)
    assert findings(target, folder, 300) == []
