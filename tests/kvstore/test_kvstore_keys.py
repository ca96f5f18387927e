"""Keys depend on profile and tokens alone, and are the same in every process."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from epic_rag.kvstore.keys import chunk_key, digest_fields
from epic_rag.kvstore.profile import EncodingProfile

ROOT = Path(__file__).resolve().parents[2]
PROFILE = EncodingProfile("model", "name", "bfloat16", "{}", "tokenizer", "warm:600", (1, 2))


def test_a_key_is_64_hex_digits_of_version_profile_and_tokens() -> None:
    expected = digest_fields(("format_version", 1), ("profile", PROFILE.digest), ("token_ids", [5, 6, 7]))
    assert chunk_key(PROFILE, [5, 6, 7]) == expected
    assert len(expected) == 64


def test_lists_tuples_and_tensors_make_the_same_key() -> None:
    ids = [5, 6, 7]
    keys = {chunk_key(PROFILE, form) for form in (ids, tuple(ids), torch.tensor(ids), torch.tensor(ids).int())}
    assert len(keys) == 1


def test_other_tokens_and_other_profiles_make_other_keys() -> None:
    keys = [chunk_key(PROFILE, ids) for ids in ([5], [5, 6], [6, 5], [5, 6, 0])]
    keys += [chunk_key(replace(PROFILE, salt="tenant"), [5])]
    assert len(set(keys)) == 5


def test_every_process_makes_the_same_key() -> None:
    code = (
        "from epic_rag.kvstore.keys import chunk_key\n"
        "from epic_rag.kvstore.profile import EncodingProfile\n"
        "profile = EncodingProfile('model', 'name', 'bfloat16', '{}', 'tokenizer', 'warm:600', (1, 2))\n"
        "print(chunk_key(profile, [5, 6, 7]))\n"
    )
    for seed in ("0", "12345"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True, env=environment
        )
        assert done.stdout.strip() == chunk_key(PROFILE, [5, 6, 7])


@pytest.mark.parametrize(
    "ids", [[], [-1], [2**31], [1.0], [True], torch.tensor(3), torch.ones(2), torch.ones(1, 2).int()]
)
def test_what_is_no_token_list_is_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="token"):
        chunk_key(PROFILE, ids)
