import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from epic_rag.retrievers import IndexCorruptError, IndexReadOnlyError, PassageIndex, RetrieverError
from epic_rag.retrievers import database as database_module


@pytest.fixture
def filled(tmp_path, put_texts):
    """A folder with an index of some size, closed."""
    with PassageIndex(tmp_path / "index") as index:
        for number in range(20):
            put_texts(index, f"doc {number}", *(f"passage {part} of {number} " * 20 for part in range(5)))
    return tmp_path / "index"


def test_read_only_reads_and_refuses_to_write(filled, put_texts):
    with PassageIndex(filled, read_only=True) as index:
        assert index.read_only
        assert (index.num_documents, len(list(index.passages()))) == (20, 100)
        for write in (
            lambda: put_texts(index, "a", "x"),
            lambda: index.delete_document("doc 1"),
            lambda: index.set_meta("a", "b"),
        ):
            with pytest.raises(IndexReadOnlyError, match=r"open for reading only. Ingest with"):
                write()


def test_a_reader_sees_what_another_process_writes(filled, put_texts):
    with PassageIndex(filled, read_only=True) as reader, PassageIndex(filled) as writer:
        put_texts(writer, "new", "text")
        assert reader.state == writer.state
        assert reader.document("new").num_passages == 1


def test_read_only_without_an_index_says_so(tmp_path):
    with pytest.raises(IndexReadOnlyError, match=r"there is no passage index at .*Ingest something first"):
        PassageIndex(tmp_path / "nothing", read_only=True)
    assert not (tmp_path / "nothing").exists()


READER = """
import json, os, sys
from pathlib import Path
from epic_rag.retrievers import IndexReadOnlyError, LexicalIndex, Passage, PassageIndex
with PassageIndex(None) as index:  # imports what is imported late, while the interpreter's files may still be read
    index.put_document("a", "d", "t", "o", [Passage.create(source="a", position=0, title="", text="b", token_ids=[1])])
    LexicalIndex(index).search("b", 1)
if os.geteuid() == 0:  # root may write anything: go on as nobody
    os.setgid(65534)
    os.setuid(65534)
with PassageIndex(Path(sys.argv[1])) as index:
    found = LexicalIndex(index).search("passage 3 of 17", 3)
    try:
        index.set_meta("a", "b")
        refused = False
    except IndexReadOnlyError:
        refused = True
    print(json.dumps([index.read_only, index.num_passages, len(found), refused]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="rights of folders work differently on Windows")
@pytest.mark.parametrize("mode", [0o555, 0o755])
def test_a_folder_of_another_user_opens_for_reading_by_itself(filled, mode):
    with tempfile.TemporaryDirectory() as shared:
        Path(shared).chmod(0o755)
        folder = Path(shared) / "index"
        shutil.copytree(filled, folder)
        (folder / "index.sqlite").chmod(0o444)
        folder.chmod(mode if os.geteuid() == 0 else 0o555)
        result = subprocess.run([sys.executable, "-c", READER, folder], capture_output=True, text=True)
        folder.chmod(0o755)
    assert result.stderr == ""
    assert json.loads(result.stdout) == [True, 100, 3, True]


@pytest.mark.parametrize("content", [b"not a database at all, " * 100, os.urandom(8192)])
def test_a_foreign_file_is_reported_and_left_alone(tmp_path, content):
    (tmp_path / "index.sqlite").write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(IndexCorruptError, match="Delete it with its -wal and -shm files and ingest again"):
            PassageIndex(tmp_path, read_only=read_only)
    assert (tmp_path / "index.sqlite").read_bytes() == content


def test_another_programs_database_is_refused(tmp_path):
    connection = sqlite3.connect(tmp_path / "index.sqlite")
    connection.execute("CREATE TABLE passages (a)")
    connection.close()
    with pytest.raises(IndexCorruptError, match=r"is not a passage index. Move it away"):
        PassageIndex(tmp_path)


def test_a_newer_schema_is_refused_in_words(filled):
    connection = sqlite3.connect(filled / "index.sqlite")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(RetrieverError, match="schema version 99, this release reads 1"):
        PassageIndex(filled)


def test_a_truncated_file_is_corrupt_when_it_is_opened_or_read(filled):
    file = filled / "index.sqlite"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(IndexCorruptError, match="damaged"), PassageIndex(filled) as index:
        list(index.passages())


def test_overwritten_pages_are_corrupt_when_they_are_read(filled):
    file = filled / "index.sqlite"
    data = bytearray(file.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    file.write_bytes(data)
    with pytest.raises(IndexCorruptError, match="damaged"), PassageIndex(filled) as index:
        list(index.passages())


def test_an_empty_file_as_left_by_a_crash_becomes_an_index(tmp_path):
    (tmp_path / "index.sqlite").touch()
    with PassageIndex(tmp_path) as index:
        assert index.num_documents == 0


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RetrieverError, match=r"cannot create the passage index .*Name a folder that may be written"):
        PassageIndex(tmp_path / "file" / "index")


def test_a_lock_held_too_long_is_reported(filled, put_texts, monkeypatch):
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT_SECONDS", 0.05)
    holder = sqlite3.connect(filled / "index.sqlite", isolation_level=None)
    with PassageIndex(filled) as index:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(RetrieverError, match=r"locked .* by another process. Try again"):
            put_texts(index, "a", "x")
        assert index.num_documents == 20
        holder.execute("ROLLBACK")
        put_texts(index, "a", "x")
    holder.close()


def test_a_full_disk_leaves_the_index_as_it_was(filled, put_texts):
    with PassageIndex(filled) as index:
        state = index.state
        index._database.rows("PRAGMA max_page_count = 1")  # sqlite keeps the present size, and allows no page more
        with pytest.raises(RetrieverError, match=r"disk is full.*left as it was"):
            put_texts(index, "big", "x" * 1_000_000)
        assert (index.state, index.num_documents) == (state, 20)


def test_a_closed_index_says_that_it_is_closed(filled):
    index = PassageIndex(filled)
    index.close()
    index.close()
    with pytest.raises(RetrieverError, match="was closed"):
        _ = index.num_documents
