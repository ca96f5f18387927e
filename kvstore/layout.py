"""The tensor table of a blob's header: which tensors a codec's chunk must have, and where they lie."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

from epic_rag.kvstore.codecs_base import ITEM_BYTES, Part

_SHORTEST_ENTRY = 50
"""Characters that a tensor takes in the table at least; a header cannot make a reader list more than it has."""


STATS_NAME = "stats.attention"
"""The statistics that this version knows, in each layer behind its parts; others are passed over."""


def stats_part(num_kv_heads: int, num_tokens: int) -> Part:
    """Return what a layer's statistics are."""
    return Part(STATS_NAME, "F16", (num_kv_heads, 2, num_tokens))


class Layout(NamedTuple):
    """Where the parts of a chunk lie, in bytes counted from the first behind the header.

    Attributes:
        starts: of each layer.
        end: of the last.
        part_lengths: bytes of each part, by layer.
        stats_starts: of each layer's statistics; empty where not every layer has them.
    """

    starts: tuple[int, ...]
    end: int
    part_lengths: tuple[tuple[int, ...], ...]
    stats_starts: tuple[int, ...]


def read_layout(text: str, num_layers: int, num_tokens: int, parts: tuple[Part, ...], stats: Part) -> Layout:
    """Check the tensor table against what a codec makes of a chunk.

    Args:
        text: the table: safetensors' entries in the order of their bytes, as a JSON object.
        num_layers: L.
        num_tokens: T.
        parts: what each layer consists of.
        stats: what its statistics are, if it has any.

    Raises:
        ValueError, TypeError, KeyError: a table of anything else.
    """
    if len(text) < _SHORTEST_ENTRY * num_layers * len(parts):
        raise ValueError(f"too few tensors, expected at least {1 + num_layers * len(parts)}")
    if not any(part.packed for part in parts):
        for behind in ((stats,), ()):
            usual, layout = _usual(num_layers, num_tokens, parts, behind)
            if text == usual:
                return layout
    table = json.loads(text)
    wanted = _wanted(num_layers, num_tokens, parts)
    spans = _spans(table)
    if [name for name in spans if ".stats." not in name] != [name for name, _ in wanted]:
        raise ValueError("tensors of other names than one chunk of this codec has")
    for name, part in wanted:
        _check_part(name, part, spans[name])
    layers = [[spans[name] for name, _ in wanted[i : i + len(parts)]] for i in range(1, len(wanted), len(parts))]
    together = [[_Span("", [], 0, 0), spans["token_ids"], layers[0][0]], *layers]
    if any(one.end != two.start for group in together for one, two in pairwise(group)):
        raise ValueError("something before the token ids, behind them, or between the parts of a layer")
    return Layout(
        starts=tuple(layer[0].start for layer in layers),
        end=max(span.end for span in spans.values()),
        part_lengths=tuple(tuple(span.end - span.start for span in layer) for layer in layers),
        stats_starts=_find_stats(num_layers, stats, spans),
    )


@lru_cache(maxsize=32)
def _usual(
    num_layers: int, num_tokens: int, parts: tuple[Part, ...], stats: tuple[Part] | tuple[()]
) -> tuple[str, Layout]:
    """The table of a chunk without packed parts, as it is written here, and its layout.

    Most chunks of a store have the same; to compare with it takes a tenth of the time of reading it.
    """
    wanted = _wanted(num_layers, num_tokens, (*parts, *stats))
    starts, end = [], 0
    for _, part in wanted:
        starts.append(end)
        end += part.num_bytes
    table = write_table((name, part.dtype, part.shape) for name, part in wanted)
    lengths = tuple(part.num_bytes for part in parts)
    step = len(parts) + len(stats)
    stats_starts = tuple(starts[1 + len(parts) :: step]) if stats else ()
    return table, Layout(tuple(starts[1::step]), end, (lengths,) * num_layers, stats_starts)


def _wanted(num_layers: int, num_tokens: int, parts: tuple[Part, ...]) -> list[tuple[str, Part]]:
    """Names and descriptions of the tensors, in the order of their bytes."""
    wanted = [("token_ids", Part("token_ids", "I32", (num_tokens,)))]
    return wanted + [(f"layer.{i}.{part.name}", part) for i in range(num_layers) for part in parts]


def write_table(tensors: Iterable[tuple[str, str, Sequence[int]]]) -> str:
    """Write the table of tensors (name, safetensors dtype, shape) that lie one after the other, as JSON."""
    table: dict[str, object] = {}
    end = 0
    for name, dtype, shape in tensors:
        start, end = end, end + prod(shape) * ITEM_BYTES[dtype]
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    return json.dumps(table, separators=(",", ":"))


class _Span(NamedTuple):
    dtype: str
    shape: list[int]
    start: int
    end: int


def _spans(table: Mapping[str, object]) -> dict[str, _Span]:
    """Return what the table says of each tensor, in the order of their bytes; nothing may lie between them."""
    spans, end = {}, 0
    for name, entry in table.items():
        if not isinstance(entry, dict) or any(type(side) is not int or side < 0 for side in entry["shape"]):
            raise TypeError(f"tensor {name} without a description")
        start, end = end, end + prod(entry["shape"]) * ITEM_BYTES[entry["dtype"]]
        if entry["data_offsets"] != [start, end]:
            raise ValueError(f"tensor {name} at {entry['data_offsets']}, expected {[start, end]}")
        spans[name] = _Span(entry["dtype"], entry["shape"], start, end)
    return spans


def _find_stats(num_layers: int, stats: Part, spans: Mapping[str, _Span]) -> tuple[int, ...]:
    """Where each layer's statistics start; nowhere unless every layer has them as they are described."""
    found = [spans.get(f"layer.{i}.{stats.name}") for i in range(num_layers)]
    usable = [span for span in found if span and (span.dtype, span.shape) == (stats.dtype, list(stats.shape))]
    return tuple(span.start for span in usable) if len(usable) == num_layers else ()


def _check_part(name: str, part: Part, span: _Span) -> None:
    if part.packed:
        if span.dtype != "U8" or len(span.shape) != 1 or not 0 < span.shape[0] <= part.num_bytes:
            raise ValueError(f"tensor {name}: {span.dtype} {span.shape}, expected at most {part.num_bytes} bytes of U8")
    elif (span.dtype, span.shape) != (part.dtype, list(part.shape)):
        raise ValueError(f"tensor {name}: {span.dtype} {span.shape}, expected {part.dtype} {list(part.shape)}")
