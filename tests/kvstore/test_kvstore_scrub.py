"""`verify` tells damage from what it does not know and from what is gone, and passes over what is not ours."""

from pathlib import Path

import pytest
from kv_chunks import noise

from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.errors import StoreFormatError
from epic_rag.kvstore.header import build_header
from epic_rag.kvstore.keys import ChunkKey, chunk_key
from epic_rag.kvstore.memory import MemoryStore
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.kvstore.scrub import is_ours, scrub
from epic_rag.kvstore.store import KVStore

PROFILE = EncodingProfile("model", "name", "bfloat16", "{}", "tokenizer", "none", ())


def put(store: KVStore) -> ChunkKey:
    kv = noise()
    key = chunk_key(PROFILE, kv.token_ids)
    store.put(key, kv, profile=PROFILE, encode_seconds=0.5)
    return key


@pytest.mark.parametrize(
    ("name", "ours"),
    [("0" * 64, True), ("profile-" + "0" * 64, True), ("0" * 63, False), ("g" * 64, False), ("-" * 64, False)],
)
def test_chunks_and_records_are_ours(name: str, ours: bool) -> None:
    assert is_ours(name) is ours


def test_what_is_intact_but_unknown_is_no_damage_and_stays() -> None:
    with KVStore(MemoryStore()) as store:
        key = put(store)
        for header in (build_header({"codec": "lz9"}, []), build_header({"format_version": "2"}, [])):
            store.blobs.put(key, header)
            report = store.verify(quarantine=True)
            assert (report.checked, report.damaged, [name for name, _ in report.unreadable]) == (2, [], [key])
            assert "use the version that wrote the store" in report.unreadable[0][1]
            assert store.contains([key]) == [True]


def test_progress_is_told_and_damage_handed_on() -> None:
    blobs, told, handed = MemoryStore(), [], []
    blobs.put("0" * 64, b"rubbish")
    blobs.put("1" * 64, b"rubbish")
    blobs.put("not-ours", b"rubbish")

    def check(name: str, view: object) -> None:
        if name == "0" * 64:
            raise StoreFormatError("flaw")

    report = scrub(blobs, check, lambda *at: told.append(at), lambda name, error: handed.append((name, str(error))))
    assert told == [(1, 2), (2, 2)]
    assert handed == report.damaged == [("0" * 64, "flaw")]


def test_what_is_listed_but_cannot_be_read_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with KVStore(DiskStore(tmp_path)) as store:
        key = put(store)
        monkeypatch.setattr(store.blobs, "_read", lambda name: None)
        report = store.verify()
        assert report.checked == 2
        assert (key, "is listed, but cannot be read") in report.damaged


def test_what_is_deleted_meanwhile_is_not_missed() -> None:
    blobs = MemoryStore()
    for digit in "012":
        blobs.put(digit * 64, b"bytes")
    report = scrub(blobs, lambda name, view: blobs.delete("1" * 64), None, None)
    assert (report.checked, report.damaged) == (2, [])
