"""The key of a chunk: a content hash of how it was encoded and of its tokens, nothing else.

File names, times and metadata never enter, so the same text in two files is encoded once; the codec never enters
either, so changing it re-encodes nothing.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NewType

from epic_rag.kvstore.digest import digest_fields
from epic_rag.kvstore.profile import EncodingProfile

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FORMAT_VERSION", "ChunkKey", "chunk_key", "digest_fields", "is_key", "token_list"]

FORMAT_VERSION = 1
"""Version of the blob format (docs/kv-format.md); part of every key."""

ChunkKey = NewType("ChunkKey", str)
"""64 lowercase hex digits."""

_KEY_DIGITS = 64
_MAX_TOKEN_ID = 2**31 - 1


def chunk_key(profile: EncodingProfile, token_ids: "Sequence[int] | Tensor") -> ChunkKey:
    """Return the key under which a chunk's KV is stored.

    Args:
        profile: how the chunk is encoded.
        token_ids: the chunk's tokens [T], without the compile prefix; at least one.

    Raises:
        ValueError: no tokens, or a token id that is not an integer between 0 and 2**31 - 1.
    """
    ids = token_list(token_ids)
    if not ids:
        raise ValueError("a chunk needs at least one token, got none")
    digest = digest_fields(("format_version", FORMAT_VERSION), ("profile", profile.digest), ("token_ids", ids))
    return ChunkKey(digest)


def is_key(name: str) -> bool:
    """Return whether a blob's name may be the key of a chunk."""
    return len(name) == _KEY_DIGITS and set(name) <= set("0123456789abcdef")


def token_list(token_ids: "Sequence[int] | Tensor") -> list[int]:
    """Return token ids [T] as a list of Python integers.

    Raises:
        ValueError: not one-dimensional, or a token id that is not an integer between 0 and 2**31 - 1.
    """
    tolist = getattr(token_ids, "tolist", None)
    ids = list(token_ids) if tolist is None else tolist()
    if not isinstance(ids, list):
        raise ValueError("token ids: expected a sequence [T], got a single number")  # noqa: TRY004
    for token in ids:
        if type(token) is not int or not 0 <= token <= _MAX_TOKEN_ID:
            raise ValueError(f"token ids: expected integers between 0 and {_MAX_TOKEN_ID}, got {token!r}")
    return ids
