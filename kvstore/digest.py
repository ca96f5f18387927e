"""One digest over typed, length-prefixed fields: the ground that profiles and keys stand on."""

import hashlib
import struct
from collections.abc import Sequence

FieldValue = str | int | bytes | Sequence[int]


def digest_fields(*fields: tuple[str, FieldValue]) -> str:
    """Return the sha256 of named fields as 64 lowercase hex digits.

    Every name and value is written as one type letter, its length in 8 bytes, and its bytes, so that no two different
    lists of fields share an encoding: neither ("ab", "c") and ("a", "bc"), nor the text "1" and the number 1.
    Nothing of the process enters (no hash(), no dict order), so every process computes the same digest.

    Args:
        fields: (name, value) pairs; a value is text, a number, bytes, or a sequence of numbers of 64 bits.

    Raises:
        ValueError: a value of another type, or a number of a sequence beyond 64 bits.
    """
    sha = hashlib.sha256()
    for name, value in fields:
        for letter, data in (_encode(name, name), _encode(name, value)):
            sha.update(letter + struct.pack("<Q", len(data)))
            sha.update(data)
    return sha.hexdigest()


def _encode(name: str, value: FieldValue) -> tuple[bytes, bytes]:
    if isinstance(value, str):
        return b"s", value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return b"b", value
    if isinstance(value, int) and not isinstance(value, bool):
        return b"i", str(value).encode("ascii")
    if isinstance(value, Sequence):
        try:
            return b"l", struct.pack(f"<{len(value)}q", *value)
        except struct.error as error:
            raise ValueError(f"field {name!r}: expected a sequence of 64-bit integers ({error})") from error
    raise ValueError(f"field {name!r}: expected str, int, bytes or a sequence of int, got {type(value).__name__}")
