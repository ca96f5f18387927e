"""Stage decode: token after token from the linked KV, as text that can be shown at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from epic_rag.config import DEFAULT_MAX_TOKENS
from epic_rag.errors import ConfigError
from epic_rag.evict import SlotKeeper
from epic_rag.kv_cache import KVCache
from epic_rag.model import LanguageModel
from epic_rag.model.tokens import TextTokenizer


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How the answer is decoded.

    Attributes:
        max_tokens: longest answer.
        temperature: 0 is greedy.
        top_p: nucleus: smallest set of tokens with at least this probability (arXiv 1904.09751).
        seed: makes sampling repeatable; None draws a fresh one.
        stop: the answer ends before the first of these strings.
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: says which is out of range.
        """
        if self.max_tokens < 1:
            raise ConfigError(f"max tokens must be at least 1, got {self.max_tokens}")
        if self.temperature != 0 and not 1e-3 <= self.temperature <= 1e3:
            raise ConfigError(f"temperature must be 0 (greedy) or between 0.001 and 1000, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top-p must be above 0 and at most 1, got {self.top_p}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be between 0 and 2**63 - 1, got {self.seed}")
        if any(not text for text in self.stop):
            raise ConfigError("a stop string must not be empty")


class Sampler:
    """Picks the next token from logits."""

    def __init__(self, options: DecodeOptions, device: torch.device) -> None:
        self._options = options
        self._generator = torch.Generator(device=device)
        if options.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(options.seed)

    def pick(self, logits: Tensor) -> int:
        """The next token's id; `logits`: `[vocabulary]` fp32."""
        if self._options.temperature == 0:
            return int(logits.argmax())
        probabilities = torch.softmax(logits / self._options.temperature, dim=-1)
        ordered, ids = probabilities.sort(descending=True)
        outside = ordered.cumsum(0) - ordered >= self._options.top_p
        ordered = ordered.masked_fill(outside, 0.0)
        return int(ids[torch.multinomial(ordered, 1, generator=self._generator)])


class TextStream:
    """Turns token ids into text that can be shown at once: whole characters only, nothing of a stop string."""

    def __init__(self, tokenizer: TextTokenizer, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids: list[int] = []
        self._shown = 0
        self.stopped = False

    def add(self, token: int) -> str:
        """Take one token; return the text that is now certain."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        found = [text.find(stop) for stop in self._stop if stop in text]
        if found:
            self.stopped = True
            return self._show(text, min(found))
        certain = len(text.rstrip("\ufffd"))  # the rest is half a character
        return self._show(text, certain - self._possible_stop(text[:certain]))

    def finish(self) -> str:
        """The text that was held back."""
        if self.stopped:
            return ""
        text = self._tokenizer.decode(self._ids)
        return self._show(text, len(text))

    def _possible_stop(self, text: str) -> int:
        """Length of the longest tail of `text` with which a stop string begins."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        tails = range(min(longest, len(text)), 0, -1)
        return next((n for n in tails if any(stop.startswith(text[-n:]) for stop in self._stop)), 0)

    def _show(self, text: str, until: int) -> str:
        shown, self._shown = text[self._shown : until], max(self._shown, until)
        return shown


@dataclass(frozen=True, slots=True)
class DecodedPiece:
    """Text of one step.

    Attributes:
        text: possibly empty.
        num_tokens: the answer's tokens so far.
        finish_reason: of the last piece: `length` when the answer was cut at `max_tokens`, `stop` when it ended by
            itself or at a stop string; empty before.
    """

    text: str
    num_tokens: int
    finish_reason: str = ""


def decode(
    model: LanguageModel,
    cache: KVCache,
    logits: Tensor,
    options: DecodeOptions,
    keeper: SlotKeeper | None = None,
) -> Iterator[DecodedPiece]:
    """Decode an answer.

    Args:
        model: the language model.
        cache: linked KV of the whole prompt, with room for `options.max_tokens` more.
        logits: `[vocabulary]` fp32 of the prompt's last token.
        options: how.
        keeper: finds the slot of each token in a cache of constant size; None: the cache grows by one slot a token.

    Yields:
        One piece a token, possibly without text, and a last one with what was held back.
    """
    sampler, stream = Sampler(options, logits.device), TextStream(model.tokenizer, options.stop)
    token, count, finish_reason = sampler.pick(logits), 0, "stop"
    while token not in model.eos_ids:
        count += 1
        yield DecodedPiece(stream.add(token), count)
        if stream.stopped:
            break
        if count == options.max_tokens:
            finish_reason = "length"
            break
        position, slot = cache.next_position, cache.length if keeper is None else keeper.next_slot()
        logits = model.forward(
            model.ids([token]),
            model.positions(position, position + 1),
            cache,
            slots=model.positions(slot, slot + 1),
            scores=None if keeper is None else keeper.sink,
        )[-1]
        token = sampler.pick(logits)
    yield DecodedPiece(stream.finish(), count, finish_reason)
