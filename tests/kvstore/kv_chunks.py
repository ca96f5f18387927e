"""Chunks that the tests of codecs and MACs store."""

from __future__ import annotations

from collections.abc import Callable

import torch
import xxhash

from epic_rag.kvstore.header import header_bytes
from epic_rag.kvstore.keys import ChunkKey
from epic_rag.kvstore.tensors import ChunkKV

KEY = ChunkKey("0123456789abcdef" * 4)
PROFILE = "fedcba9876543210" * 4
SECRET = b"the secret of the golden file...."
BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


def ramp(num_layers: int = 2, heads: int = 2, tokens: int = 3, dim: int = 4) -> ChunkKV:
    """Numbers that rise, in bfloat16."""
    numbers = torch.arange(2 * num_layers * heads * tokens * dim).reshape(2, num_layers, heads, tokens, dim)
    keys, values = (numbers / 8 - 5).to(torch.bfloat16)
    return ChunkKV(keys, values, torch.arange(tokens, dtype=torch.int32) * 1000)


def noise(
    num_layers: int = 2, heads: int = 2, tokens: int = 3, dim: int = 4, dtype: torch.dtype = torch.bfloat16
) -> ChunkKV:
    """Numbers as KV has them: normal, a few channels of the keys larger."""
    dice = torch.Generator().manual_seed(heads * tokens * dim)
    keys, values = torch.randn(2, num_layers, heads, tokens, dim, generator=dice)
    keys[..., 0] *= 20
    return ChunkKV(keys.to(dtype), values.to(dtype), torch.arange(tokens, dtype=torch.int32))


def same_bits(one: ChunkKV, two: ChunkKV) -> bool:
    """Whether two chunks agree in every bit, NaN included."""
    bits = BITS[one.keys.dtype]
    return (
        one.keys.dtype == two.keys.dtype
        and torch.equal(one.keys.view(bits), two.keys.contiguous().view(bits))
        and torch.equal(one.values.view(bits), two.values.contiguous().view(bits))
        and torch.equal(one.token_ids, two.token_ids)
    )


def reseal(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Change a blob and make its public checksum good again, as anyone can who writes into a store."""
    end = header_bytes(data)
    seal = slice(data.index(b'checksum":"') + 11, data.index(b'checksum":"') + 43)
    changed = bytearray(change(data[:end]))
    assert len(changed) == end
    changed[seal] = b"0" * 32
    changed[seal] = xxhash.xxh3_128_hexdigest(bytes(changed)).encode()
    return bytes(changed) + data[end:]
