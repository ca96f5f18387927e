import codecs
import os

import pytest

from epic_rag.loading.decode import decode_text, marked_encoding
from epic_rag.loading.document import SkipSourceError

GERMAN = "Der Bär läuft über die Brücke. Größe zählt nicht."
RUSSIAN = "Привет, мир. Это просто текст на русском языке, чтобы проверить кодировку."


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("", "utf-8"),
        ("plain", "ascii"),
        (GERMAN, "utf-8"),
        (GERMAN, "utf-8-sig"),
        (GERMAN, "utf-16"),
        (GERMAN, "utf-32"),
        (GERMAN, "cp1252"),
        ("café", "cp1252"),
        ("naïve résumé: “5 £”", "cp1252"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "utf-8"),
        ("これは日本語の文章です。テストします。", "shift_jis"),
        ("这是一个中文句子，用于测试。", "gb18030"),
        ("Příliš žluťoučký kůň úpěl ďábelské ódy", "cp1250"),
        ("\x1b[31mred\x1b[0m terminal text\f", "ascii"),
    ],
)
def test_text_is_read_whatever_its_encoding(text, encoding):
    assert decode_text(text.encode(encoding)) == text


def test_utf_16_of_either_order_is_told_by_its_mark():
    assert decode_text(codecs.BOM_UTF16_BE + "héllo".encode("utf-16-be")) == "héllo"
    assert decode_text(codecs.BOM_UTF16_LE + "héllo".encode("utf-16-le")) == "héllo"
    assert marked_encoding(codecs.BOM_UTF32_LE + b"....") == "utf-32"
    assert marked_encoding(b"plain") is None


def test_a_broken_byte_does_not_change_the_alphabet():
    data = RUSSIAN.encode() + b"\xff\xfe" + RUSSIAN.encode()
    assert decode_text(data) == f"{RUSSIAN}\ufffd\ufffd{RUSSIAN}"


def test_a_cut_character_at_the_end():
    assert decode_text(RUSSIAN.encode()[:-2] + "я".encode()[:1]).startswith(RUSSIAN[:-2])


@pytest.mark.parametrize(
    "data",
    [
        b"\x7fELF\x00\x01binary",
        b"PK\x03\x04" + b"\x01\x02\x03" * 50,
        bytes(byte or 1 for byte in os.urandom(5000)),
        "text".encode("utf-16-le"),
    ],
    ids=["nul", "controls", "random", "utf-16 without mark"],
)
def test_what_is_no_text_looks_binary(data):
    with pytest.raises(SkipSourceError, match="looks binary"):
        decode_text(data)


def test_the_locale_plays_no_part(monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("LANG", "C")
    assert decode_text(RUSSIAN.encode()) == RUSSIAN
