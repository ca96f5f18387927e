import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epic_rag.retrievers import PassageIndex
from epic_rag.retrievers.ranking import RowNumbers, best_rows, found_passages


@given(st.lists(st.integers(-3, 3), max_size=40), st.sets(st.integers(0, 39)), st.integers(1, 50))
def test_the_best_rows_are_those_of_a_full_sort(values, chosen, k):
    scores = np.array(values, dtype=np.float32)
    rows = np.array(sorted(row for row in chosen if row < len(values)), dtype=np.intp)
    expected = sorted(rows.tolist(), key=lambda row: (-values[row], row))[:k]
    assert best_rows(scores, rows, k).tolist() == expected


def test_row_numbers_rise_and_leave_out_strangers():
    numbers = RowNumbers(np.array([b"c", b"a", b"b"]))
    assert numbers.of(["b", "x", "c"]).tolist() == [0, 2]
    assert numbers.of([]).tolist() == []


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_found_passages_keep_their_order(put_texts, order):
    with PassageIndex(None) as index:
        passages = put_texts(index, "a", "one", "two")
        scored = [(passages[row].id, 1.0 + row) for row in order]
        assert found_passages(index, [*scored, ("gone", 0.5)]) == [(passages[row], 1.0 + row) for row in order]
