"""A plain prompt to its answer: prefill under the budget, then decode. Read this file first, then one file a stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from torch import Tensor

from epic_rag.decode import DecodedPiece, Sampler, TextStream
from epic_rag.errors import ConfigError, PromptError, UnsupportedModelError
from epic_rag.evict import parse_policy
from epic_rag.generate.bounded import BoundedKV
from epic_rag.generate.bounds import Bounds
from epic_rag.generate.compat import EasyKV
from epic_rag.generate.options import GenerateOptions
from epic_rag.kv_cache import KVCache
from epic_rag.model import LanguageModel


class SequenceKV(Protocol):
    """The KV of one sequence, however it is bounded."""

    cache: KVCache
    peak_slots: int

    def prefill(self, token_ids: Sequence[int]) -> Tensor:
        """Take a whole prompt; logits `[vocabulary]` fp32 of its last token."""

    def step(self, token: int) -> Tensor:
        """Take a token of the answer; logits `[vocabulary]` fp32."""


@dataclass(frozen=True, slots=True)
class GenerateReport:
    """What an answer took.

    Attributes:
        budget_tokens: the budget in slots; None: there was none.
        prompt_tokens: tokens of the prompt.
        kept_tokens: slots in use when decoding began.
        peak_slots: most slots ever in use.
        answer_tokens: tokens of the answer.
        peak_bytes: keys and values that were reserved; there are never more.
        full_bytes: what the prompt and the longest answer would take without a budget.
        prefill_seconds: the prompt, with its evictions.
        decode_seconds: the answer, with its evictions.
        ttft_seconds: from the start to the first token.
        total_seconds: from the start to the end, including what was done with the pieces.
    """

    budget_tokens: int | None
    prompt_tokens: int
    kept_tokens: int
    peak_slots: int
    answer_tokens: int
    peak_bytes: int
    full_bytes: int
    prefill_seconds: float
    decode_seconds: float
    ttft_seconds: float
    total_seconds: float


class Generation:
    """One prompt being answered: iterate it once, then ask for the report."""

    def __init__(self, model: LanguageModel, prompt_ids: Sequence[int], options: GenerateOptions) -> None:
        """Check that it can be done, and plan it; nothing is computed yet.

        Raises:
            PromptError: there is no prompt, or prompt and answer exceed the model's window.
            ConfigError: a budget that does not fit the model or the mode.
            UnsupportedModelError: the model runs whole prompts only.
        """
        check_prompt(model, len(prompt_ids), options.decode.max_tokens)
        self._model, self._prompt_ids, self._options = model, list(prompt_ids), options
        num_tokens = len(prompt_ids)
        budget = options.budget
        self._budget_tokens = None if budget is None else budget.resolve(num_tokens, model.kv_bytes_per_token)
        self._kv = self._make_kv()
        self._num_answer = self._kept_tokens = 0
        self._prefill_seconds = self._decode_seconds = self._ttft_seconds = self._total_seconds = 0.0

    def __iter__(self) -> Iterator[DecodedPiece]:
        """Answer.

        Yields:
            One piece a token, possibly without text, and a last one with what was held back.
        """
        if self._ttft_seconds:
            raise ConfigError("a Generation answers once: make another one to answer again")
        model, how = self._model, self._options.decode
        stream, began = TextStream(model.tokenizer, how.stop), perf_counter()
        logits = self._kv.prefill(self._prompt_ids)
        sampler = Sampler(how, logits.device)
        token = sampler.pick(logits)
        self._kept_tokens = self._kv.cache.length
        self._prefill_seconds = self._ttft_seconds = perf_counter() - began
        while token not in model.eos_ids:
            self._num_answer += 1
            yield DecodedPiece(stream.add(token), self._num_answer)
            if stream.stopped or self._num_answer == how.max_tokens:
                break
            step_began = perf_counter()
            token = sampler.pick(self._kv.step(token))
            self._decode_seconds += perf_counter() - step_began
        yield DecodedPiece(stream.finish(), self._num_answer)
        self._total_seconds = perf_counter() - began

    def report(self) -> GenerateReport:
        """What it took so far."""
        num_tokens, bytes_per_token = len(self._prompt_ids), self._model.kv_bytes_per_token
        return GenerateReport(
            budget_tokens=self._budget_tokens,
            prompt_tokens=num_tokens,
            kept_tokens=self._kept_tokens,
            peak_slots=self._kv.peak_slots,
            answer_tokens=self._num_answer,
            peak_bytes=self._kv.cache.capacity * bytes_per_token,
            full_bytes=(num_tokens + self._options.decode.max_tokens - 1) * bytes_per_token,
            prefill_seconds=self._prefill_seconds,
            decode_seconds=self._decode_seconds,
            ttft_seconds=self._ttft_seconds,
            total_seconds=self._total_seconds,
        )

    def _make_kv(self) -> SequenceKV:
        options, num_tokens = self._options, len(self._prompt_ids)
        answer = options.decode.max_tokens - 1  # the last token's KV is never needed
        if options.compat is not None:
            if options.budget is None:
                raise ConfigError(f"compat '{options.compat}' needs a budget")
            return EasyKV(self._model, num_tokens, answer, options.budget, options.mode, options.stride_tokens)
        policy = parse_policy(options.policy, options.budget)
        bounds = Bounds.of_mode(options.mode, num_tokens, answer, self._budget_tokens, options.stride_tokens)
        return BoundedKV(self._model, bounds, policy, options.stride_tokens)


def generate(
    model: LanguageModel, prompt_ids: Sequence[int], options: GenerateOptions | None = None
) -> Iterator[DecodedPiece]:
    """Answer a plain prompt under a KV budget.

    Args:
        model: the language model.
        prompt_ids: the prompt's token ids.
        options: how; defaults as in `GenerateOptions`.

    Returns:
        One piece a token, possibly without text, and a last one with what was held back.

    Raises:
        PromptError: there is no prompt, or prompt and answer exceed the model's window.
        ConfigError: a budget that does not fit the model or the mode.
        UnsupportedModelError: the model runs whole prompts only.
    """
    return iter(Generation(model, prompt_ids, options or GenerateOptions()))


def check_prompt(model: LanguageModel, num_tokens: int, answer_tokens: int = 0) -> None:
    """Refuse a prompt that cannot be prefilled.

    Raises:
        PromptError: there is none, or it exceeds the model's window together with the answer.
        UnsupportedModelError: the model runs whole prompts only.
    """
    if not model.can_link:
        raise UnsupportedModelError(
            f"model '{model.name}' runs whole prompts only, so its KV cannot be kept within a budget: {model.reason}"
        )
    if num_tokens == 0:
        raise PromptError("there is no text: give a file or standard input with at least one token")
    if num_tokens + answer_tokens > model.window:
        answer = f" and the answer up to {answer_tokens}" if answer_tokens else ""
        raise PromptError(
            f"the text has {num_tokens} tokens{answer}; the model knows {model.window} positions, whatever the budget. "
            "Shorten the text, lower --max-tokens, or use a model with a larger window"
        )
