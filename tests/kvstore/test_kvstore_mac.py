"""With a secret key, nothing is used that was not written with that key, whatever its public checksums say."""

import hashlib
import hmac
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import xxhash
from kv_chunks import KEY, PROFILE, SECRET, ramp, reseal, same_bits

from epic_rag.kvstore.blobstore import BlobStore
from epic_rag.kvstore.codecs import CODECS
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.errors import StoreFormatError, StoreKeyError, StoreTrustError, StoreUnavailableError
from epic_rag.kvstore.format import check, pack, read_layer, read_token_ids, unpack
from epic_rag.kvstore.header import build_header, header_bytes, parse_header
from epic_rag.kvstore.keys import ChunkKey, chunk_key
from epic_rag.kvstore.mac import Authenticator, split_record
from epic_rag.kvstore.memory import MemoryStore
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.kvstore.store import KVStore
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.kvstore.testing import content
from epic_rag.kvstore.tiered import TieredStore
from epic_rag.kvstore.transfer import copy_store

OURS, OTHERS = Authenticator(SECRET), Authenticator(SECRET[::-1])
ENCODING = EncodingProfile("model", "name", "bfloat16", "{}", "tokenizer", "warm:600", (1, 2))
IDS = [0, 1000, 2000]


def blob(codec: str = "none", authenticator: Authenticator | None = OURS) -> bytes:
    return b"".join(pack(KEY, ramp(), PROFILE, 0.25, codec, authenticator))


def poisoned(data: bytes, *, digest: bool) -> bytes:
    """Other KV in layer 0, with good public checksums; `digest`: and with its SHA-256 in the header."""
    start, length = parse_header(data).layers[0]
    old, new = data[start : start + length], bytes([data[start] ^ 1]) + data[start + 1 : start + length]

    def change(header: bytes) -> bytes:
        changed = header.replace(xxhash.xxh3_128_hexdigest(old).encode(), xxhash.xxh3_128_hexdigest(new).encode())
        if digest:
            before, after = (hashlib.sha256(layer).hexdigest().encode() for layer in (old, new))
            changed = changed.replace(before, after)
        return changed

    return reseal(data[:start] + new + data[start + length :], change)


@pytest.mark.parametrize("codec", CODECS)
def test_what_was_written_with_the_key_reads_with_it_and_without(codec: str) -> None:
    data = blob(codec)
    plain = unpack(blob(codec, None), KEY)
    assert same_bits(unpack(data, KEY, authenticator=OURS), plain)
    assert same_bits(unpack(data, KEY), plain)


@pytest.mark.parametrize("codec", CODECS)
def test_other_kv_under_good_public_checksums_is_refused(codec: str) -> None:
    for digest in (False, True):
        data = poisoned(blob(codec), digest=digest)
        check(data, KEY)
        for read in (unpack, check):
            with pytest.raises(StoreFormatError, match=r"MAC|layer 0"):
                read(data, KEY, authenticator=OURS)
    with pytest.raises(StoreTrustError, match=r"its MAC is not that.*EPIC_RAG_STORE_KEY"):
        unpack(data, KEY, authenticator=OURS)


def test_no_mac_and_another_keys_are_refused_with_the_mend() -> None:
    for authenticator, words in ((None, "no MAC"), (OTHERS, "its MAC is not")):
        with pytest.raises(StoreTrustError, match=f"{words}.*EPIC_RAG_STORE_KEY"):
            unpack(blob(authenticator=authenticator), KEY, authenticator=OURS)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (KEY.encode(), (KEY[1:] + KEY[:1]).encode()),
        (PROFILE.encode(), (PROFILE[1:] + PROFILE[:1]).encode()),
        (b'"encode_seconds":"0.25"', b'"encode_seconds":"0.99"'),
        (b'"mac":"', b'"mad":"'),
        (b'"sha256.layer.0"', b'"sha257.layer.0"'),
    ],
)
def test_no_field_can_be_changed(old: bytes, new: bytes) -> None:
    data = reseal(blob(), lambda header: header.replace(old, new))
    key = ChunkKey(KEY[1:] + KEY[:1]) if old == KEY.encode() else KEY
    unpack(data, key)
    with pytest.raises(StoreTrustError):
        unpack(data, key, authenticator=OURS)


def test_a_mac_elsewhere_than_it_must_stand_is_none() -> None:
    metadata = {"mac": OURS.mac(b"anything"), "codec": "none"}
    with pytest.raises(StoreTrustError, match="its MAC is not"):
        parse_header(build_header(metadata, []), OURS)
    with pytest.raises(StoreTrustError, match="no MAC"):
        parse_header(build_header({"x": "y", **metadata}, []), OURS)


def test_layers_read_by_range_are_checked_against_forgery_too() -> None:
    data = memoryview(bytearray(blob()))
    header = parse_header(data, OURS)
    forged = memoryview(bytearray(poisoned(bytes(data), digest=False)))
    for start, length in header.layers[:1]:
        assert torch.equal(read_layer(header, 0, data[start : start + length])[0], ramp().keys[0])
        with pytest.raises(StoreFormatError, match="layer 0: checksum"):
            read_layer(header, 0, forged[start : start + length])
    start, length = header.token_ids
    data[start] ^= 1
    with pytest.raises(StoreFormatError, match="token ids"):
        read_token_ids(header, data[start : start + length])


def test_the_mac_is_what_the_specification_says() -> None:
    """Computed with nothing but docs/kv-format.md in hand."""
    extracted = hmac.new(bytes(32), SECRET, hashlib.sha256).digest()
    data = blob()
    header = data[: header_bytes(data)]
    start = header.index(b'"format_version":"1","mac":"') + len(b'"format_version":"1","mac":"')
    assert start == 8 + len('{"__metadata__":{"header_checksum":"') + 32 + len(
        '","format":"epic-rag-kv","format_version":"1","mac":"'
    )
    seal = header.index(b'"header_checksum":"') + len(b'"header_checksum":"')
    zeroed = bytearray(header)
    zeroed[start : start + 64] = b"0" * 64
    zeroed[seal : seal + 32] = b"0" * 32
    key = hmac.new(extracted, b"epic-rag-kv blob\x01", hashlib.sha256).digest()
    assert header[start : start + 64].decode() == hmac.new(key, zeroed, hashlib.sha256).hexdigest()
    record = ENCODING.to_json()
    key = hmac.new(extracted, b"epic-rag-kv record\x01", hashlib.sha256).digest()
    mac = hmac.new(key, record, hashlib.sha256).hexdigest()
    assert OURS.seal_record(record) == record[:-1] + f',"mac":"{mac}"}}'.encode()


def test_a_short_secret_is_refused_and_no_secret_is_shown() -> None:
    with pytest.raises(ValueError, match="has 9 bytes, expected at least 32: make one with") as caught:
        Authenticator(b"my secret")
    assert "my secret" not in str(caught.value)
    store = KVStore(MemoryStore(), mac_key=SECRET)
    shown = f"{store!r} {store.__dict__!r} {OURS!r} {vars(store.blobs)!r}"
    assert SECRET.decode() not in shown
    assert SECRET.hex() not in shown


@pytest.fixture(params=["memory", "disk", "redis", "memory over disk", "disk over redis"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path, open_redis: Callable[..., BlobStore]) -> BlobStore:
    def redis() -> BlobStore:
        return open_redis(request.getfixturevalue("redis_uri"))

    make: dict[str, Callable[[], BlobStore]] = {
        "memory": MemoryStore,
        "disk": lambda: DiskStore(tmp_path / "store"),
        "redis": redis,
        "memory over disk": lambda: TieredStore([MemoryStore(), DiskStore(tmp_path / "store")]),
        "disk over redis": lambda: TieredStore([DiskStore(tmp_path / "store"), redis()]),
    }
    return make[request.param]()


def put(store: KVStore) -> ChunkKey:
    kv = ramp()
    key = chunk_key(ENCODING, IDS)
    store.put(key, kv, profile=ENCODING, encode_seconds=0.5)
    return key


def without_key(data: bytes) -> bytes:
    kv = unpack(data, chunk_key(ENCODING, IDS))
    poison = ChunkKV(kv.keys * 2, kv.values, kv.token_ids)
    return b"".join(pack(chunk_key(ENCODING, IDS), poison, ENCODING.digest, 0.5))


def with_another_key(data: bytes) -> bytes:
    key = chunk_key(ENCODING, IDS)
    return b"".join(pack(key, unpack(data, key), ENCODING.digest, 0.5, "none", OTHERS))


@pytest.mark.parametrize(
    "forge", [without_key, with_another_key, lambda data: poisoned(data, digest=True), lambda data: data[:-1] + b"?"]
)
def test_a_poisoned_entry_is_never_served_and_heals(
    blobs: BlobStore, forge: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with KVStore(blobs, mac_key=SECRET) as store:
        key = put(store)
        blobs.put(key, forge(bytes(blobs.get(key) or b"")))
        out = torch.empty(2, 2, 2, 3, 4, dtype=torch.bfloat16)
        report = store.verify()
        assert [name for name, _ in report.damaged] == [key]
        with caplog.at_level(logging.WARNING, "epic_rag.kvstore"):
            assert store.get(key, IDS, out=(out[0], out[1])) is None
        assert key in caplog.text
        assert store.contains([key]) == [False], "or it would never be stored again"
        assert (store.stats().damaged, store.stats().tiers[0].corrupt, store.stats().misses) == (1, 1, 1)
        put(store)
        hit = store.get(key, IDS)
        assert hit is not None
        assert same_bits(hit.kv, ramp())
        assert store.verify().damaged == []
        if isinstance(blobs, DiskStore):
            reasons = list((blobs.path / "quarantine").glob("*.reason.txt"))
            assert len(reasons) == 1, "its bytes are kept aside for whoever wants to know"


def test_a_forged_profile_is_missing_and_heals(blobs: BlobStore) -> None:
    with KVStore(blobs, mac_key=SECRET) as store:
        put(store)
        name = f"profile-{ENCODING.digest}"
        assert store.profile(ENCODING.digest) == ENCODING
        sealed = bytes(blobs.get(name) or b"")
        renamed = replace(ENCODING, model_name="a better one").to_json()
        assert split_record(sealed) == (ENCODING.to_json(), sealed[-66:-2].decode())
        for forged in (renamed, ENCODING.to_json(), OTHERS.seal_record(renamed), sealed.replace(b'"name"', b'"mane"')):
            blobs.put(name, forged)
            assert [damaged for damaged, _ in store.verify().damaged] == [name]
            assert store.profile(ENCODING.digest) is None
            store.put_profile(ENCODING)
            assert store.profile(ENCODING.digest) == ENCODING


def test_without_a_key_nothing_changes(blobs: BlobStore) -> None:
    with KVStore(blobs) as store:
        key = put(store)
        assert b"mac" not in bytes(blobs.get(key) or b"")
        assert blobs.get(f"profile-{ENCODING.digest}") == ENCODING.to_json()
        assert store.same_key(KVStore(MemoryStore()))
        assert not store.same_key(KVStore(MemoryStore(), mac_key=SECRET))
        assert KVStore(MemoryStore(), mac_key=SECRET).same_key(KVStore(MemoryStore(), mac_key=SECRET))
        assert not KVStore(MemoryStore(), mac_key=SECRET).same_key(KVStore(MemoryStore(), mac_key=SECRET[::-1]))


def test_damage_can_be_set_aside_by_verify(blobs: BlobStore) -> None:
    with KVStore(blobs, mac_key=SECRET) as store:
        key = put(store)
        blobs.put(key, without_key(bytes(blobs.get(key) or b"")))
        assert len(store.verify(quarantine=True).damaged) == 1
        assert store.contains([key]) == [False]
        assert store.verify().damaged == []


def contents(blobs: BlobStore) -> dict[str, bytes]:
    return {
        f"{tier.tier} {name}": content(tier.get(name)) or b"" for tier in blobs.each_tier() for name in tier.names()
    }


@pytest.mark.parametrize("secret", [SECRET[::-1], None])
def test_a_store_of_another_key_is_refused_before_anything_is_touched(blobs: BlobStore, secret: bytes | None) -> None:
    with_key = KVStore(blobs, mac_key=SECRET)
    key = put(with_key)
    held = contents(blobs)
    with pytest.raises(StoreKeyError, match=r"secret key: .* Nothing was changed") as caught:
        KVStore(blobs, mac_key=secret)
    assert secret is None or secret.decode() not in str(caught.value)
    assert contents(blobs) == held
    assert KVStore(blobs, mac_key=SECRET).get(key, IDS) is not None
    assert [profile.digest for profile in with_key.profiles()] == [ENCODING.digest]
    assert with_key.verify().damaged == []


def test_a_store_without_a_key_is_refused_with_one_before_anything_is_touched(blobs: BlobStore) -> None:
    """Of a Redis it is seen at the first read or write that it matters to; elsewhere when the store is opened."""
    key = put(KVStore(blobs))
    held = contents(blobs)
    for act in (lambda store: store.get(key, IDS), lambda store: store.get_many([(key, IDS)]), put):
        with pytest.raises(StoreKeyError, match="written without a secret key"):
            act(KVStore(blobs, mac_key=SECRET))
    assert contents(blobs) == held
    assert KVStore(blobs).get(key, IDS) is not None


def test_every_tier_is_asked_for_its_key(tmp_path: Path) -> None:
    """The first one's record says nothing of the next."""
    ours, theirs = DiskStore(tmp_path / "ours"), DiskStore(tmp_path / "theirs")
    KVStore(ours, mac_key=SECRET).put_profile(ENCODING)
    key = put(KVStore(theirs, mac_key=SECRET[::-1]))
    held = contents(theirs)
    with pytest.raises(StoreKeyError, match="another secret key"):
        KVStore(TieredStore([ours, theirs]), mac_key=SECRET)
    assert contents(theirs) == held
    assert KVStore(theirs, mac_key=SECRET[::-1]).get(key, IDS) is not None


@pytest.mark.parametrize("secret", [SECRET[::-1], None])
def test_a_tier_that_was_away_at_first_is_asked_again(
    tmp_path: Path, secret: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = DiskStore(tmp_path / "ours"), DiskStore(tmp_path / "theirs")
    key = put(KVStore(theirs, mac_key=secret))
    held = contents(theirs)

    def unavailable(*_: object) -> None:
        raise StoreUnavailableError("away")

    with monkeypatch.context() as away:
        away.setattr(theirs, "get_range", lambda *_: None)
        away.setattr(theirs, "contains", lambda names: [False] * len(names))
        for name in ("put", "names", "delete"):
            away.setattr(theirs, name, unavailable)
        store = KVStore(TieredStore([ours, theirs]), mac_key=SECRET)
        store.put_profile(replace(ENCODING, encoding="prompt"))
    for _ in range(2):
        with pytest.raises(StoreKeyError, match=r"another secret key|without a secret key"):
            store.get(key, IDS)
    assert contents(theirs) == held


def test_an_unsealed_store_is_taken_over_when_it_is_trusted(tmp_path: Path) -> None:
    source, target = KVStore(DiskStore(tmp_path / "old")), KVStore(DiskStore(tmp_path / "new"), mac_key=SECRET)
    key = put(source)
    report = copy_store(source, target, seal=True)
    assert (report.copied, report.left_out) == (2, [])
    hit = KVStore(DiskStore(tmp_path / "new"), mac_key=SECRET).get(key, IDS)
    assert hit is not None
    assert same_bits(hit.kv, ramp())
    assert target.verify().damaged == []
