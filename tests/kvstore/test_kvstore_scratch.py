"""Memory that is used again is never lent twice at a time."""

from epic_rag.kvstore.scratch import _KEPT_BYTES, Scratch, fresh


def test_memory_grows_and_is_used_again() -> None:
    scratch = Scratch()
    with scratch.lend() as loan:
        first = loan.take(100)
        assert len(first) == 100
        assert len(loan.take(50)) == 50
        assert loan.memory.nbytes == 100
    with scratch.lend() as loan:
        assert loan.take(100).obj is first.obj
        larger = loan.take(1000)
    with scratch.lend() as loan:
        assert loan.take(10).obj is larger.obj


def test_two_loans_at_once_share_nothing() -> None:
    scratch = Scratch()
    with scratch.lend() as loan:
        loan.take(10)
    with scratch.lend() as one, scratch.lend() as two:
        a, b = one.take(10), two.take(10)
        a[:], b[:] = b"a" * 10, b"b" * 10
        assert bytes(a) == b"a" * 10


def test_what_is_very_large_is_not_kept() -> None:
    scratch = Scratch()
    with scratch.lend() as loan:
        loan.take(_KEPT_BYTES + 1)
    with scratch.lend() as loan:
        assert loan.memory.nbytes == 0
    assert len(fresh(0)) == 0
