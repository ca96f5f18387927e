"""The KV of one chunk, and the letters in which this project writes shapes.

L layers, H KV heads, T tokens, D head dimension, Q query rows, N context length.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("torch.bfloat16", "torch.float16", "torch.float32")
"""The dtypes that KV may have."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkKV:
    """Keys and values of one chunk, free of position.

    Attributes:
        keys: [L, H, T, D], BEFORE RoPE: one rotation to wherever the chunk stands gives what the model computes there.
        values: [L, H, T, D], of the same dtype and device.
        token_ids: int32 [T].
        stats: float16 [L, H, 2, T] on the CPU, or None where they were not measured: mean and population standard
            deviation of the attention that each token received from the chunk's own rows when it was encoded; token t
            was seen by T - t rows.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit together.
    """

    keys: "Tensor"
    values: "Tensor"
    token_ids: "Tensor"
    stats: "Tensor | None" = None

    def __post_init__(self) -> None:
        keys, values, ids = self.keys, self.values, self.token_ids
        if keys.ndim != 4 or 0 in keys.shape:
            raise ValueError(f"keys: expected [L, H, T, D] with no empty side, got {list(keys.shape)}")
        if str(keys.dtype) not in DTYPES:
            raise ValueError(f"keys: expected one of {', '.join(DTYPES)}, got {keys.dtype}")
        if values.shape != keys.shape or values.dtype != keys.dtype or values.device != keys.device:
            raise ValueError(
                f"values: expected {list(keys.shape)} {keys.dtype} on {keys.device} like the keys, "
                f"got {list(values.shape)} {values.dtype} on {values.device}"
            )
        if ids.ndim != 1 or str(ids.dtype) != "torch.int32" or len(ids) != keys.shape[2]:
            raise ValueError(
                f"token_ids: expected int32 [T={keys.shape[2]}] like the keys, got {ids.dtype} {list(ids.shape)}"
            )
        if self.stats is not None:
            self._check_stats(self.stats)

    def _check_stats(self, stats: "Tensor") -> None:
        num_layers, num_kv_heads, num_tokens, _ = self.keys.shape
        shape = (num_layers, num_kv_heads, 2, num_tokens)
        if stats.shape != shape or str(stats.dtype) != "torch.float16" or stats.device.type != "cpu":
            raise ValueError(
                f"stats: expected float16 {list(shape)} on the CPU, "
                f"got {stats.dtype} {list(stats.shape)} on {stats.device}"
            )

    @property
    def num_tokens(self) -> int:
        """T."""
        return int(self.keys.shape[2])

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors."""
        stats_bytes = 0 if self.stats is None else self.stats.nbytes
        return self.keys.nbytes + self.values.nbytes + self.token_ids.nbytes + stats_bytes
