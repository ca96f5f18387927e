"""The encoding profile: everything but the tokens that decides what a chunk's KV looks like."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from epic_rag.kvstore.digest import digest_fields
from epic_rag.kvstore.errors import StoreFormatError

JSONValue = str | int | float | bool | None | list["JSONValue"] | Mapping[str, "JSONValue"]


def canonical_json(value: JSONValue) -> str:
    """Return the one spelling of a JSON value that a profile uses: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


@dataclass(frozen=True, slots=True)
class EncodingProfile:
    """How chunks were encoded; two chunks share KV only when profile and tokens agree.

    Attributes:
        model_fingerprint: digest of the model's config and weights, adapters included.
        model_name: the model's name, for people only; not part of the digest.
        dtype: compute dtype, for example "bfloat16".
        rope: the RoPE parameters, as `canonical_json` writes them.
        tokenizer_digest: digest of the tokenizer.
        encoding: how the chunk was prefilled, for example "warm:600".
        prefix_ids: token ids of the compile prefix that stood in front of the chunk.
        salt: the tenant; tenants with different salts never share or probe each other's entries.
    """

    model_fingerprint: str
    model_name: str
    dtype: str
    rope: str
    tokenizer_digest: str
    encoding: str
    prefix_ids: tuple[int, ...]
    salt: str = ""
    _digest: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        digest = digest_fields(
            ("record", "encoding-profile"),
            ("model_fingerprint", self.model_fingerprint),
            ("dtype", self.dtype),
            ("rope", self.rope),
            ("tokenizer_digest", self.tokenizer_digest),
            ("encoding", self.encoding),
            ("prefix_ids", self.prefix_ids),
            ("salt", self.salt),
        )
        object.__setattr__(self, "_digest", digest)

    @property
    def digest(self) -> str:
        """64 lowercase hex digits over every field but `model_name`."""
        return self._digest

    def to_json(self) -> bytes:
        """Return the profile as canonical JSON."""
        record: dict[str, JSONValue] = {name: getattr(self, name) for name in _TEXT_FIELDS}
        return canonical_json(record | {"prefix_ids": list(self.prefix_ids)}).encode("ascii")

    @classmethod
    def from_json(cls, data: bytes) -> "EncodingProfile":
        """Read what `to_json` wrote.

        Raises:
            StoreFormatError: not JSON, or not exactly the fields of a profile.
        """
        try:
            record = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise StoreFormatError(f"profile record: not JSON ({error})") from error
        expected = {*_TEXT_FIELDS, "prefix_ids"}
        if not isinstance(record, dict) or set(record) != expected:
            raise StoreFormatError(f"profile record: expected an object with the fields {sorted(expected)}")
        for name in _TEXT_FIELDS:
            if not isinstance(record[name], str):
                raise StoreFormatError(f"profile record: {name} is not text")
        ids = record["prefix_ids"]
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise StoreFormatError("profile record: prefix_ids is not a list of integers")
        try:
            return cls(**{**record, "prefix_ids": tuple(ids)})
        except ValueError as error:
            raise StoreFormatError(f"profile record: {error}") from error


_TEXT_FIELDS = tuple(f.name for f in fields(EncodingProfile) if f.init and f.name != "prefix_ids")
