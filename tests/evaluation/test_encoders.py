"""The library of chunks: nothing is encoded twice while there is room, and it never holds more than its bytes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from epic_rag.encode import Encoder
from epic_rag.evaluation.encoders import ChunkLibrary
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.model import LanguageModel
from epic_rag.prompt import Prompt, prompt_frame

CHUNKS = tuple(tuple(range(n, n + 10)) for n in (20, 40, 60, 80))


class Counting:
    prefix_ids = (1, 2)

    def __init__(self, model: LanguageModel) -> None:
        self.encoded: list[tuple[int, ...]] = []
        self._encoder = Encoder(model, self.prefix_ids)

    def encode(self, token_ids: Sequence[int]) -> ChunkKV:
        self.encoded.append(tuple(token_ids))
        return self._encoder.encode(token_ids)


def prompt_of(*chunks: int) -> Prompt:
    return Prompt((), tuple(CHUNKS[i] for i in chunks), (9,))


def test_chunks_are_encoded_once(tiny_llama: LanguageModel) -> None:
    counting = Counting(tiny_llama)
    library = ChunkLibrary(tiny_llama, prompt_frame(tiny_llama.tokenizer), (), extra={"mine": counting})
    library.stored("mine", prompt_of(0, 1))
    found = library.stored("mine", prompt_of(1, 2, 0))
    assert counting.encoded == [CHUNKS[0], CHUNKS[1], CHUNKS[2]]
    assert [tuple(kv.token_ids.tolist()) for kv in found] == [CHUNKS[1], CHUNKS[2], CHUNKS[0]]


def test_the_least_recently_used_chunk_goes_first(tiny_llama: LanguageModel) -> None:
    counting = Counting(tiny_llama)
    size = Encoder(tiny_llama, ()).encode(CHUNKS[0]).num_bytes
    frame = prompt_frame(tiny_llama.tokenizer)
    library = ChunkLibrary(tiny_llama, frame, (), extra={"mine": counting}, limit_bytes=2 * size)
    for chunk in (0, 1, 0, 2):  # 1 goes
        library.stored("mine", prompt_of(chunk))
    assert library.num_bytes == 2 * size
    library.stored("mine", prompt_of(0))
    library.stored("mine", prompt_of(1))
    assert counting.encoded == [CHUNKS[0], CHUNKS[1], CHUNKS[2], CHUNKS[1]]
    small = ChunkLibrary(tiny_llama, frame, (), extra={"mine": counting}, limit_bytes=1)
    assert len(small.stored("mine", prompt_of(0, 1, 2))) == 3
    assert small.num_bytes == 0


def test_encodings_and_codecs_are_kept_apart(tiny_llama: LanguageModel) -> None:
    frame = prompt_frame(tiny_llama.tokenizer)
    library = ChunkLibrary(tiny_llama, frame, ("A corpus of one text.\n\n",))
    prompt = Prompt(frame.prefix_ids, (CHUNKS[0],), (9,))
    beginning, plain = library.stored("none", prompt)
    _, sinks = library.stored("sinks", prompt)
    coded_beginning, coded = library.stored("none", prompt, "int8")
    assert torch.equal(plain.keys, Encoder(tiny_llama, ()).encode(CHUNKS[0]).keys)
    assert torch.equal(beginning.keys, Encoder(tiny_llama, ()).encode(frame.prefix_ids).keys)
    assert not torch.equal(plain.values, sinks.values)
    for one, other in ((plain, coded), (beginning, coded_beginning)):
        assert not torch.equal(one.keys, other.keys)
        # half a scale, which is a 127th of the largest magnitude
        assert float((one.keys - other.keys).abs().max()) <= float(one.keys.abs().max()) / 254 * 1.001
    assert len({library.digest(name) for name in ("none", "sinks", "prompt")}) == 3


@pytest.mark.parametrize("wanted", [False, True])
def test_statistics_where_they_are_wanted(tiny_llama: LanguageModel, wanted: bool) -> None:
    frame = prompt_frame(tiny_llama.tokenizer)
    library = ChunkLibrary(tiny_llama, frame, (), statistics=wanted)
    kept = library.stored("none", Prompt(frame.prefix_ids, CHUNKS[:1], (9,)))
    assert [kv.stats is not None for kv in kept] == [wanted, wanted]


def test_the_first_chunk_may_have_an_encoding_of_its_own(tiny_llama: LanguageModel) -> None:
    counting = Counting(tiny_llama)
    frame = prompt_frame(tiny_llama.tokenizer)
    library = ChunkLibrary(tiny_llama, frame, (), extra={"mine": counting})
    found = library.stored("prompt/mine", prompt_of(0, 1, 2))
    assert counting.encoded == [CHUNKS[1], CHUNKS[2]]
    assert library.prefix_ids("prompt/mine") == frame.prefix_ids
    assert torch.equal(found[0].keys, Encoder(tiny_llama, frame.prefix_ids).encode(CHUNKS[0]).keys)
    digests = {library.digest(name) for name in ("prompt/mine", "mine/prompt", "prompt", "mine")}
    assert len(digests) == 4
    assert library.digest("mine/mine") == library.digest("mine")
