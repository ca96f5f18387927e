import builtins
import io
import logging
import os
from pathlib import Path

import pypdf
import pytest

from epic_rag.loading import LoadedDocument, SkippedSource, load_paths
from epic_rag.loading.document import SkipSourceError
from epic_rag.loading.pdf import load_pdf

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("EPIC_RAG_TEST_DATA", ROOT / ".." / "shared" / "data"))


def page_of(text: str) -> bytes:
    """A PDF of one page with one line, written by hand: pypdf reads, but does not draw."""
    drawing = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawing), drawing),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    data, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    start = len(data)
    data += b"xref\n0 6\n0000000000 65535 f \n" + table
    return data + b"trailer << /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % start


def write(path: Path, *texts: str, title: str = "", password: str = "") -> Path:
    writer = pypdf.PdfWriter()
    for text in texts:
        writer.append(io.BytesIO(page_of(text)))
    if title:
        writer.add_metadata({"/Title": title})
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    writer.write(path)
    return path


def load(path: Path) -> LoadedDocument:
    return next(load_pdf(path, path.name))


def reason(path: Path) -> str:
    with pytest.raises(SkipSourceError) as caught:
        load(path)
    return str(caught.value)


def test_pages_are_joined_by_a_blank_line(tmp_path):
    document = load(write(tmp_path / "file.pdf", "First page", "Second page"))
    assert (document.title, document.text, document.has_lines) == ("", "First page\n\nSecond page", False)


def test_the_title_of_the_pdf_is_taken(tmp_path):
    assert load(write(tmp_path / "file.pdf", "text", title="A  title")).title == "A title"
    assert load(write(tmp_path / "file.pdf", "text", title="untitled\0")).title == ""


def test_a_pdf_without_words_needs_ocr(tmp_path):
    assert "run OCR" in reason(write(tmp_path / "file.pdf", ""))


def test_an_encrypted_pdf_says_so(tmp_path):
    assert reason(write(tmp_path / "file.pdf", "text", password="secret")).startswith("encrypted PDF")


def test_broken_pdfs_never_escape(tmp_path):
    whole = page_of("words")
    file = tmp_path / "file.pdf"
    for data in (b"%PDF-1.7\n", b"not a pdf", whole.replace(b"/Kids [3 0 R]", b"/Kids [9 0 R]"), whole[:400]):
        file.write_bytes(data)
        found = list(load_paths([file]))
        assert [type(item) for item in found] in ([LoadedDocument], [SkippedSource])
    for cut in range(0, len(whole), 37):
        file.write_bytes(whole[:cut] + b"\xff" * 5 + whole[cut + 5 :])
        assert len(list(load_paths([file]))) == 1


def test_an_empty_file_is_empty(tmp_path):
    (tmp_path / "file.pdf").touch()
    assert reason(tmp_path / "file.pdf") == "empty"


def test_any_exception_of_the_library_becomes_a_reason(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise ZeroDivisionError

    path = write(tmp_path / "file.pdf", "text")
    monkeypatch.setattr(pypdf.PageObject, "extract_text", fail)
    assert reason(path) == "broken PDF: ZeroDivisionError"


def test_without_the_extra_the_reason_names_it(tmp_path, monkeypatch):
    genuine = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("pypdf"):
            raise ModuleNotFoundError(name)
        return genuine(name, *args, **kwargs)

    path = write(tmp_path / "file.pdf", "text")
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert reason(path) == "reading PDF needs an extra: pip install 'epic-rag[pdf]'"


def test_remarks_of_the_library_stay_inside(tmp_path, caplog, capfd):
    path = tmp_path / "file.pdf"
    path.write_bytes(b"junk before\n" + page_of("words").replace(b"startxref\n", b"startxref\n9"))
    before = logging.getLogger("pypdf").level
    assert load(path).text == "words"
    assert (caplog.records, capfd.readouterr()) == ([], ("", ""))
    assert logging.getLogger("pypdf").level == before


@pytest.mark.data
@pytest.mark.skipif(not (DATA / "awkward").is_dir(), reason="no evaluation data: set EPIC_RAG_TEST_DATA to its folder")
def test_awkward_pdfs_load_or_are_named():
    loader = load_paths([DATA / "awkward" / "pdf"])
    found = list(loader)
    reasons = {Path(item.source).name: item.reason for item in found if isinstance(item, SkippedSource)}
    assert len(found) == 28
    assert loader.num_ignored == 0
    assert reasons.pop("libreoffice-writer-password.pdf").startswith("encrypted PDF")
    assert len(reasons) == 5
    assert all("run OCR" in text for text in reasons.values())
    assert any("حَبيبي" in item.text for item in found if isinstance(item, LoadedDocument))
