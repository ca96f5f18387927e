from epic_rag.loading.text import load_text


def test_a_text_file_is_its_text(tmp_path):
    (tmp_path / "my notes.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    document = next(load_text(tmp_path / "my notes.txt", "notes"))
    assert (document.source, document.title, document.text) == ("notes", "", "one\ntwo\n")
    assert document.has_lines
    assert document.sections == ()
