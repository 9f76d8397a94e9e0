from __future__ import annotations

import copy
import random
import re

from tests.faults.mutations import changed_bytes, changed_json, changed_numbers, changed_text

SAMPLE = {"version": 3, "names": ["a", "b"], "inner": {"deep": [1, {"x": None}]}}


def test_the_same_dice_give_the_same_input() -> None:
    for seed in range(200):
        one, two = random.Random(seed), random.Random(seed)
        assert changed_bytes(b"0123456789", (b"abc",), one) == changed_bytes(
            b"0123456789", (b"abc",), two
        )
        assert repr(changed_json(SAMPLE, one)) == repr(changed_json(SAMPLE, two))
        assert changed_text("a b c", ("d",), one) == changed_text("a b c", ("d",), two)


def test_a_sample_stays_as_it_is() -> None:
    before = copy.deepcopy(SAMPLE)
    dice = random.Random(1)
    results = [repr(changed_json(SAMPLE, dice)) for _ in range(500)]
    assert before == SAMPLE
    assert len(set(results)) > 300


def test_changed_numbers_keep_the_length() -> None:
    dice = random.Random(2)
    for length in (0, 1, 7, 8, 48, 100):
        for _ in range(50):
            assert len(changed_numbers(bytes(length), dice)) == length


def test_numbers_that_are_written_out_stay_numbers() -> None:
    dice = random.Random(3)
    sample = b'{"start": 1700000000, "done": 12}'
    changed = {changed_numbers(sample, dice) for _ in range(500)}
    found = [re.fullmatch(rb'{"start": ([0-9]+), "done": [0-9]+}', each) for each in changed]
    assert len({match[1] for match in found if match is not None}) > 5
