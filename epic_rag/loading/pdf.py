"""PDF: the text layer of the pages, through pypdf, an optional dependency."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epic_rag.loading.document import EMPTY, LoadedDocument, SkipSourceError, clean_text, make_document

_MISSING_REASON = "reading PDF needs an extra: pip install 'epic-rag[pdf]'"
_ENCRYPTED_REASON = "encrypted PDF: save a copy without the password"
_CRYPTOGRAPHY_REASON = f"{_ENCRYPTED_REASON}, or, when it opens without one, pip install cryptography"
_NO_TEXT_REASON = "PDF without a text layer (scanned pages?): run OCR over it first"


def load_pdf(path: Path, source: str) -> Iterator[LoadedDocument]:
    """Read the text of all pages, one blank line between two; its title is that of the metadata.

    Raises:
        OSError: The file cannot be read.
        SkipSourceError: pypdf is missing, or the file is encrypted, damaged or without text.
    """
    try:
        import pypdf  # noqa: F401  only whether it is there
    except ImportError as error:
        raise SkipSourceError(_MISSING_REASON) from error
    if path.stat().st_size == 0:
        raise SkipSourceError(EMPTY)
    with _silence():
        try:
            title, text = _read(path)
        except (SkipSourceError, OSError):
            raise
        except Exception as error:  # a damaged PDF makes pypdf raise whatever comes to hand
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise SkipSourceError(f"broken PDF: {reason}") from error
    if not text.strip():
        raise SkipSourceError(_NO_TEXT_REASON)
    yield make_document(source, title, text, has_lines=False)


def _read(path: Path) -> tuple[str, str]:
    """Title (empty when there is none) and text."""
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, FileNotDecryptedError

    with path.open("rb") as file:
        try:
            reader = PdfReader(file)
            if reader.is_encrypted and not reader.decrypt(""):
                raise SkipSourceError(_ENCRYPTED_REASON)
            pages = [clean_text(page.extract_text()).strip() for page in reader.pages]
            title = reader.metadata.title if reader.metadata else None
        except FileNotDecryptedError as error:
            raise SkipSourceError(_ENCRYPTED_REASON) from error
        except DependencyError as error:
            raise SkipSourceError(_CRYPTOGRAPHY_REASON) from error
    title = str(title or "").strip("\0 \t\r\n")
    return "" if title.lower() == "untitled" else title, "\n\n".join(page for page in pages if page)


@contextmanager
def _silence() -> Iterator[None]:
    """Keep pypdf's remarks on imperfect files off the user's terminal."""
    logger = logging.getLogger("pypdf")  # its children have no level of their own and take this one's
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
