"""The bookkeeping of one question, kept out of `ask.py` so that the stages stay legible there."""

from __future__ import annotations

from collections.abc import Sequence

from epic_rag.decode import DecodedPiece
from epic_rag.engine import Engine
from epic_rag.errors import ConfigError
from epic_rag.evict import Keeping, Policy, RoCo
from epic_rag.history import Turn, fitting_frame
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.load import ENCODED, Loader, load
from epic_rag.loading.document import clean_text
from epic_rag.metrics import StageClock
from epic_rag.prompt import Prompt, PromptFrame
from epic_rag.retrieve import Retrieved
from epic_rag.schema import Answer, Dropped, KVBytes, Source, Timings, TokenCounts
from epic_rag.selectors import Selector


class Draft:
    """Collects what the stages report and writes the `Answer` at the end."""

    def __init__(self, engine: Engine, question: str, selector: Selector, policy: Policy) -> None:
        if not question.strip():
            raise ConfigError("the question is empty: ask something in words")
        self.question_ids = engine.model.tokenizer.encode(clean_text(question.strip()))
        self.sources: tuple[Source, ...] = ()
        self._engine = engine
        self._question = question
        self._selector = selector
        self._policy = policy
        self._dropped: list[Dropped] = []
        self._warnings: list[str] = [] if engine.model.can_link else [f"full prefill: {engine.model.reason}"]
        self._text: list[str] = []
        self._num_loaded = self._num_encoded = self._num_recomputed = self._num_kept = self._num_answer = 0
        self._selection_rows = self._ttft_seconds = 0.0
        self._finish_reason = ""

    def distinct(self, found: list[Retrieved]) -> list[Retrieved]:
        """The passages, each text once; repeated and empty ones are reported as dropped."""
        seen: set[tuple[int, ...]] = set()
        kept = []
        for passage in found:
            if passage.token_ids and passage.token_ids not in seen:
                kept.append(passage)
            else:
                self._drop(passage, "same text as a better passage" if passage.token_ids else "empty")
            seen.add(passage.token_ids)
        if not kept:
            self._warnings.append("no passage matched the question; the answer rests on no document")
        return kept

    def frame(self, history: Sequence[Turn], room_tokens: int) -> PromptFrame:
        """The frame around passages and question, with the earlier turns that fit; the others are reported."""
        if not history:
            return self._engine.frame
        room_tokens -= len(self.question_ids)
        tokenizer, instruction = self._engine.model.tokenizer, self._engine.instruction
        frame, warning = fitting_frame(tokenizer, history, room_tokens, instruction)
        if warning:
            self.warn(warning)
        return frame

    def place(self, found: list[Retrieved], built: tuple[Prompt, tuple[int, ...]]) -> Prompt:
        """Take the prompt; passages that did not fit are reported as dropped."""
        self._prompt, fitting = built
        self._placed = [found[rank] for rank in fitting]
        for rank in sorted(set(range(len(found))) - set(fitting)):
            self._drop(found[rank], "does not fit the context window")
        if found and not fitting:
            self._warnings.append("no passage fits the context window; the answer rests on no document")
        return self._prompt

    def load(self, loader: Loader) -> list[ChunkKV]:
        """Stage load: the KV of prefix and chunks, and the sources with their tiers."""
        wants_statistics = isinstance(self._policy, RoCo) and self._policy.seeded
        if not self._selector.needs_stored_kv:
            if wants_statistics:
                self.warn(f"policy '{self._policy.name}' is 'roco' here: selector 'full' loads no stored statistics")
            self._cite([(loader.key(passage.token_ids), ENCODED) for passage in self._placed])
            return []
        loaded = load(self._prompt, self._engine.prefix_loader, loader)
        self._warnings += loaded.warnings
        self._num_loaded = sum(chunk.num_loaded for chunk in loaded.chunks)
        self._num_encoded = sum(chunk.kv.num_tokens for chunk in loaded.chunks) - self._num_loaded
        passages = loaded.chunks[len(loaded.chunks) - len(self._placed) :]
        without = sum(chunk.kv.stats is None for chunk in passages)
        if wants_statistics and without:
            self.warn(
                f"{without} of {len(passages)} passages have no stored statistics for policy '{self._policy.name}': "
                "ingest with --statistics, or use policy 'roco'"
            )
        # the prompt has the best passage last, the sources have it first
        self._cite([(chunk.key, chunk.tier) for chunk in reversed(passages)])
        return [chunk.kv for chunk in loaded.chunks]

    def warn(self, warning: str) -> None:
        """Add a warning to the answer."""
        self._warnings.append(warning)

    def linked(self, num_recomputed: int, num_kept: int, keeping: Keeping, selection_rows: float = 0.0) -> None:
        """Take the counts of the stages link and evict."""
        self._num_recomputed, self._num_kept, self._selection_rows = num_recomputed, num_kept, selection_rows
        if keeping.budget_tokens is not None and keeping.budget_tokens <= keeping.pinned_tokens:
            self._warnings.append(
                f"the budget of {keeping.budget_tokens} tokens is exceeded: the prompt's prefix and the question, "
                f"{keeping.pinned_tokens} tokens, always stay, and the answer takes one slot more"
            )

    def decoded(self, piece: DecodedPiece, clock: StageClock) -> str:
        """Take a piece of the answer; the first one stops the clock of the first token.

        Returns:
            Its text; the answer begins with its first word.
        """
        self._ttft_seconds = self._ttft_seconds or clock.elapsed_seconds()
        text = piece.text if self._text else piece.text.lstrip()
        if text:
            self._text.append(text)
        self._num_answer = piece.num_tokens
        self._finish_reason = piece.finish_reason
        return text

    def answer(self, clock: StageClock) -> Answer:
        """Everything about the question."""
        return Answer(
            question=self._question,
            answer="".join(self._text).rstrip(),
            sources=self.sources,
            timings=Timings(
                retrieve_seconds=clock.seconds("retrieve"),
                load_seconds=clock.seconds("load"),
                link_seconds=clock.seconds("link"),
                evict_seconds=clock.seconds("evict"),
                decode_seconds=clock.seconds("decode"),
                ttft_seconds=self._ttft_seconds,
                total_seconds=clock.elapsed_seconds(),
            ),
            tokens=TokenCounts(
                context=self._prompt.num_tokens,
                loaded=self._num_loaded,
                encoded=self._num_encoded,
                recomputed=self._num_recomputed,
                kept=self._num_kept,
                answer=self._num_answer,
                selection=round(self._selection_rows, 1),
            ),
            kv_bytes=self._kv_bytes(),
            selector=self._selector.name,
            policy=self._policy.name,
            model=self._engine.model.name,
            dropped=tuple(self._dropped),
            warnings=tuple(self._warnings),
            finish_reason=self._finish_reason,
        )

    def _kv_bytes(self) -> KVBytes:
        model = self._engine.model
        per_token = model.kv_bytes_per_token if model.can_link else 0
        full, kept = self._prompt.num_tokens * per_token, self._num_kept * per_token
        return KVBytes(full, kept, full - kept)

    def _drop(self, passage: Retrieved, reason: str) -> None:
        self._dropped.append(Dropped(passage.source, passage.position, reason))

    def _cite(self, found: Sequence[tuple[str, str]]) -> None:
        """Name the sources; `found`: key and tier of each placed passage, best first."""
        self.sources = tuple(
            Source(p.source, p.position, p.score, key, tier, p.title, p.line, p.text)
            for p, (key, tier) in zip(self._placed, found, strict=True)
        )
