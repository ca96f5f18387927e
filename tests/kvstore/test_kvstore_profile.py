"""A profile's digest covers all of it but the model's name, and its record reads back exactly."""

import json
from dataclasses import fields, replace

import pytest

from epic_rag.kvstore.errors import StoreFormatError
from epic_rag.kvstore.profile import EncodingProfile, canonical_json

PROFILE = EncodingProfile("model", "name", "bfloat16", '{"theta":1e4}', "tokenizer", "warm:600", (1, 2), "tenant")


def test_every_field_but_the_name_enters_the_digest() -> None:
    names = [f.name for f in fields(PROFILE) if f.init and f.name != "prefix_ids"]
    changed = {name: replace(PROFILE, **{name: "other"}) for name in names}  # type: ignore[arg-type]
    changed["prefix_ids"] = replace(PROFILE, prefix_ids=(3,))
    same = {name for name, profile in changed.items() if profile.digest == PROFILE.digest}
    assert same == {"model_name"}
    assert len({profile.digest for profile in changed.values()}) == len(changed)


def test_the_record_reads_back() -> None:
    assert EncodingProfile.from_json(PROFILE.to_json()) == PROFILE
    assert EncodingProfile.from_json(PROFILE.to_json()).digest == PROFILE.digest
    assert hash(EncodingProfile.from_json(PROFILE.to_json())) == hash(PROFILE)


@pytest.mark.parametrize(
    "change",
    [
        {"salt": 3},
        {"prefix_ids": ["1"]},
        {"prefix_ids": [True]},
        {"prefix_ids": "12"},
        {"prefix_ids": [2**70]},
        {"x": 1},
    ],
)
def test_a_record_of_other_fields_is_refused(change: dict[str, object]) -> None:
    record = json.loads(PROFILE.to_json()) | change
    with pytest.raises(StoreFormatError, match="profile record"):
        EncodingProfile.from_json(json.dumps(record).encode())


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{}", b"null", b"[" * 100_000, PROFILE.to_json()[:-1]])
def test_rubbish_is_refused(data: bytes) -> None:
    with pytest.raises(StoreFormatError, match="profile record"):
        EncodingProfile.from_json(data)


def test_canonical_json_has_one_spelling() -> None:
    assert canonical_json({"b": [1, 2.5, None], "a": "é"}) == '{"a":"\\u00e9","b":[1,2.5,null]}'
    with pytest.raises(ValueError, match="float"):
        canonical_json(float("nan"))
