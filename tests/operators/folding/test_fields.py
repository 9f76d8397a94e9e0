from __future__ import annotations

from icestream.kernels import field_words
from icestream.kernels.double_sums import ORIGIN
from icestream.operators.folding.fields import (
    ENTRY_FIELDS,
    GROUP_FIELDS,
    OPERATIONS,
    ORDERED,
    ROWS,
    Field,
    Layout,
    SlidingLayout,
    SumExtent,
)

LAYOUT = Layout.of(
    (Field("sum_f64", "y"), Field("valid", "x"), Field("sum_i128", "x"), Field("min", "x"))
).widened([SumExtent(ORIGIN - 60, ORIGIN + 60)])


def test_fields_are_laid_out_once_with_the_number_of_events_first() -> None:
    layout = Layout.of((Field("sum_i64", "x"), ROWS, Field("sum_i64", "x"), Field("sum_i64", "y")))
    assert layout.fields == (ROWS, Field("sum_i64", "x"), Field("sum_i64", "y"))


def test_no_two_fields_share_a_word() -> None:
    # entry: id_high id_low | rows | valid | low high | min | two digits
    assert LAYOUT.places.tolist() == [2, 3, 4, 6, 7]
    assert LAYOUT.field_words == 7
    assert LAYOUT.entry_width == ENTRY_FIELDS + 7
    assert LAYOUT.place(Field("min", "x")) == 4
    assert LAYOUT.at.sums_at.tolist() == [[5, 33, 2, -1]]
    special = LAYOUT.widened([SumExtent(has_specials=True)])
    assert special.at.sums_at.tolist() == [[5, 33, 2, 7]]
    assert special.places.tolist() == [2, 3, 4, 6, 7, 9, 10, 11]
    assert special.field_words == 10


def test_layouts_widen_as_values_need_it() -> None:
    assert Layout(LAYOUT.fields).field_words == 5
    wide = LAYOUT.widened([SumExtent(5, ORIGIN)])
    assert wide.extents == (SumExtent(5, ORIGIN + 60),)
    assert wide.at.sums_at.tolist() == [[5, 0, 35, -1]]
    assert wide.widened(LAYOUT.bounds) is wide
    # equal digits share their places
    assert LAYOUT.widened([SumExtent(ORIGIN - 61, ORIGIN)]).at is LAYOUT.at


def test_suffixes_are_kept_for_fields_without_an_inverse_only() -> None:
    # min takes one word; sums of doubles have an inverse
    assert LAYOUT.suffix_words == 1
    assert LAYOUT.suffixes_at == GROUP_FIELDS + 7
    assert LAYOUT.group_width == LAYOUT.suffixes_at + 1
    assert Layout.of([Field("sum_i128", "x")]).suffix_words == 0


def test_rows_of_sliding_windows_have_the_next_suffix_and_back_behind() -> None:
    layout = SlidingLayout(LAYOUT.fields, LAYOUT.extents)
    assert LAYOUT.next_back_at == 0
    assert layout.next_suffix_at == layout.suffixes_at + 1
    assert layout.next_back_at == layout.next_suffix_at + 1
    assert layout.group_width == len(layout.group_identity) == layout.next_back_at + 1
    sets = layout.group_identity[layout.suffixes_at :].reshape(3, 1)
    assert (sets == sets[0]).all()
    invertible = SlidingLayout.of([Field("sum_i128", "x")])
    assert invertible.next_back_at == 0
    assert invertible.group_width == invertible.suffixes_at


def test_identities_fill_every_word() -> None:
    least = field_words.IDENTITY[field_words.MIN]
    assert LAYOUT.entry_identity.tolist() == [0, 0, 0, 0, 0, 0, least, 0, 0]
    assert LAYOUT.group_identity.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, least, 0, 0, least]


def test_every_kind_of_field_has_an_operation_with_a_size_and_an_identity() -> None:
    for kind in OPERATIONS:
        op = Field(kind, "x").op
        if op == field_words.ADD_FIXED:
            continue
        assert op in field_words.WORDS
        assert op in field_words.IDENTITY


def test_fields_that_need_the_order_of_events_are_reported() -> None:
    assert not LAYOUT.needs_order
    for kind in ORDERED:
        assert Layout.of([Field(kind, "x", ("y",))]).needs_order
    # identities end in a set null bit
    assert Layout.of([Field("first", "x")]).entry_identity.tolist() == [0, 0, 0, *[2**63 - 1] * 4]


def test_the_order_of_columns_does_not_matter_where_it_has_no_meaning() -> None:
    assert Field.of_all("valid", "y", "x") == Field.of_all("valid", "x", "y")
    assert Field.of_all("valid", "y", "x").columns == ("x", "y")
    assert Field("sum_f64", "y", ("x",)) != Field("sum_f64", "x", ("y",))
