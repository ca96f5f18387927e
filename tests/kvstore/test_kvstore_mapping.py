"""Private mappings: whose bytes they are, and how long they live."""

import errno
import gc
from pathlib import Path

import pytest

from epic_rag.kvstore.mapping import map_private

DATA = bytes(range(256)) * 64


def mapped(path: Path, size_bytes: int = len(DATA)) -> memoryview:
    with path.open("rb") as file:
        return map_private(file.fileno(), size_bytes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


def test_the_view_is_plain_writable_bytes(path: Path) -> None:
    view = mapped(path)
    assert bytes(view) == DATA
    assert (view.format, view.readonly, view.nbytes) == ("B", False, len(DATA))
    assert bytes(mapped(path, 3)) == DATA[:3]


def test_writing_stays_private(path: Path) -> None:
    one, two = mapped(path), mapped(path)
    one[0] = 77
    assert (one[0], two[0]) == (77, 0)
    assert path.read_bytes() == DATA


def test_the_mapping_outlives_the_file(path: Path) -> None:
    replaced, removed = mapped(path), mapped(path)
    path.with_name("new").write_bytes(b"new")
    path.with_name("new").replace(path)
    path.unlink()
    assert bytes(replaced) == bytes(removed) == DATA


@pytest.mark.skipif(not Path("/proc/self/maps").is_file(), reason="needs Linux to list mappings")
def test_it_is_given_back_with_its_last_view(path: Path) -> None:
    def count() -> int:
        gc.collect()
        return Path("/proc/self/maps").read_text().count(str(path))

    view = mapped(path)
    part = view[10:20]
    del view
    assert count() == 1
    assert bytes(part) == DATA[10:20]
    del part
    assert count() == 0


def test_a_refusal_of_the_system_is_an_os_error() -> None:
    with pytest.raises(OSError, match="descriptor") as caught:
        map_private(-1, 10)
    assert caught.value.errno == errno.EBADF
