"""The codecs by name. A new one is a class that keeps the contract of `codecs_base`, and a line here."""

from collections.abc import Mapping

from epic_rag.kvstore.codecs_base import Codec
from epic_rag.kvstore.codecs_compress import Lz4, Zstd
from epic_rag.kvstore.codecs_int8 import Int8
from epic_rag.kvstore.codecs_plain import Plain
from epic_rag.kvstore.codecs_planes import BytePlanes

CODECS: Mapping[str, Codec] = {
    codec.name: codec for codec in (Plain(), BytePlanes(Lz4()), BytePlanes(Zstd()), Int8(), Int8(Lz4()))
}


def find_codec(name: str) -> Codec:
    """Return the codec of that name, ready to write.

    Raises:
        ValueError: an unknown name; lists the known ones.
        StoreVersionError: the package it needs is not installed; says what to install.
    """
    if name not in CODECS:
        raise ValueError(f"codec {name!r} is unknown: expected one of {', '.join(CODECS)}")
    CODECS[name].require()
    return CODECS[name]
