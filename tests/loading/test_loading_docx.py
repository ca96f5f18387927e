import builtins
import io
import zipfile
from pathlib import Path

import docx
import pytest

from epic_rag.loading import LoadedDocument, SkippedSource, load_paths
from epic_rag.loading.document import SkipSourceError
from epic_rag.loading.docx import load_docx

_FOOTNOTES = (
    '<w:footnotes xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">'
    '<w:footnote w:type="separator" w:id="0"><w:p><w:r><w:t>line</w:t></w:r></w:p></w:footnote>'
    '<w:footnote w:id="2"><w:p><w:r><w:t>A note</w:t></w:r><w:r><w:t>, once.</w:t></w:r></w:p></w:footnote>'
    "</w:footnotes>"
)


def load(path: Path) -> LoadedDocument:
    return next(load_docx(path, path.name))


def reason(path: Path) -> str:
    with pytest.raises(SkipSourceError) as caught:
        load(path)
    return str(caught.value)


def written(path: Path) -> Path:
    document = docx.Document()
    document.add_paragraph("Before all")
    document.add_heading("Boats", 1)
    document.add_paragraph("The ferry leaves at nine.")
    document.add_heading("Fares", 2)
    table = document.add_table(3, 3)
    for row, cells in enumerate((("who", "day", "night"), ("adult", "3\n50", "5"), ("", "", ""))):
        for column, cell in enumerate(cells):
            table.cell(row, column).text = cell
    document.add_paragraph("Children pay half.", style="List Bullet")
    document.add_heading("Piers", 1)
    document.add_paragraph("There are two.")
    document.save(path)
    return path


def test_paragraphs_headings_tables_and_lists_in_their_order(tmp_path):
    document = load(written(tmp_path / "file.docx"))
    assert document.text.split("\n\n") == [
        "Before all",
        "Boats",
        "The ferry leaves at nine.",
        "Fares",
        "who | day | night\nadult | 3 50 | 5",
        "- Children pay half.",
        "Piers",
        "There are two.",
    ]
    assert [section.path for section in document.sections] == [("Boats",), ("Boats", "Fares"), ("Piers",)]
    for section in document.sections:
        assert document.text[section.start_char :].startswith(section.path[-1])
    assert document.title == "Boats"
    assert not document.has_lines


def test_a_merged_cell_stands_once_and_inner_tables_are_read(tmp_path):
    document = docx.Document()
    table = document.add_table(1, 3)
    table.cell(0, 0).merge(table.cell(0, 1)).text = "wide"
    table.cell(0, 2).add_table(1, 1).cell(0, 0).text = "inner"
    document.save(tmp_path / "file.docx")
    assert load(tmp_path / "file.docx").text == "wide | inner"


def test_the_title_is_styled_or_a_property(tmp_path):
    document = docx.Document()
    document.core_properties.title = "Of the properties"
    document.add_paragraph("words")
    document.save(tmp_path / "one.docx")
    document.add_heading("Styled", 0)
    document.save(tmp_path / "two.docx")
    assert load(tmp_path / "one.docx").title == "Of the properties"
    assert load(tmp_path / "two.docx").title == "Styled"


def test_notes_stand_at_the_end(tmp_path):
    path = written(tmp_path / "file.docx")
    data = io.BytesIO()
    base = "http://schemas.openxmlformats.org"
    relation = (
        f'<Relationship Id="rId77" Type="{base}/officeDocument/2006/relationships/footnotes" Target="footnotes.xml"/>'
    )
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.footnotes+xml"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(data, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            if name == "word/_rels/document.xml.rels":
                text = text.replace(b"</Relationships>", relation.encode() + b"</Relationships>")
            if name == "[Content_Types].xml":
                override = f'<Override PartName="/word/footnotes.xml" ContentType="{kind}"/></Types>'
                text = text.replace(b"</Types>", override.encode())
            new.writestr(name, text)
        new.writestr("word/footnotes.xml", _FOOTNOTES)
    path.write_bytes(data.getvalue())
    assert load(path).text.endswith("There are two.\n\nA note, once.")


def test_empty_encrypted_and_damaged_files_are_named(tmp_path):
    path = tmp_path / "file.docx"
    path.touch()
    assert reason(path) == "empty"
    docx.Document().save(path)
    assert reason(path) == "empty"
    path.write_bytes(b"\xd0\xcf\x11\xe0" + bytes(600))
    assert "without a password" in reason(path)
    path.write_bytes(b"no zip at all")
    assert reason(path).startswith("broken docx")
    whole = written(path).read_bytes()
    for cut in range(0, len(whole), 997):
        path.write_bytes(whole[:cut] + b"\xff" * 9 + whole[cut + 9 :])
        (found,) = load_paths([path])
        assert isinstance(found, LoadedDocument | SkippedSource)


def test_a_file_that_unpacks_to_too_much_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("epic_rag.loading.office._MAX_UNPACKED_BYTES", 1000)
    assert reason(written(tmp_path / "file.docx")).startswith("unpacks to")


def test_without_the_extra_the_reason_names_it(tmp_path, monkeypatch):
    genuine = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "docx":
            raise ModuleNotFoundError(name)
        return genuine(name, *args, **kwargs)

    path = written(tmp_path / "file.docx")
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert reason(path) == "reading docx needs an extra: pip install 'epic-rag[office]'"
