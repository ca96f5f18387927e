"""Question to answer: retrieve -> load -> link -> evict -> decode. Read this file first, then one file a stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from epic_rag.config import DEFAULT_K, DEFAULT_SELECTOR
from epic_rag.decode import DecodeOptions, decode
from epic_rag.draft import Draft
from epic_rag.engine import Engine
from epic_rag.errors import ConfigError
from epic_rag.evict import Full, Keeping, KVBudget, Policy, as_budget, choose_policy
from epic_rag.history import Turn, search_text
from epic_rag.link import link
from epic_rag.metrics import StageClock
from epic_rag.model import LanguageModel
from epic_rag.prompt import build_prompt
from epic_rag.retrieve import Retrieved, retrieve
from epic_rag.retrievers.where import Where
from epic_rag.schema import Answer, Source
from epic_rag.selectors import FullSelector, Selector, parse_selector


@dataclass(frozen=True, slots=True)
class AskOptions:
    """How a question is answered.

    Attributes:
        k: passages to retrieve.
        selector: which context tokens are computed again, such as `lego:4`; see `parse_selector`.
        policy: which tokens stay under the budget; None: `roco`, or `full` where there is no budget.
        budget: what may stay in the KV cache, of prompt and answer together: tokens (1024), a share of the prompt
            ("25%") or bytes ("64MB"); None: all.
        decode: length, sampling and stop strings.
        where: only passages whose fields match are retrieved, such as `{"source": "docs/*"}`; None: all.
    """

    k: int = DEFAULT_K
    selector: str = DEFAULT_SELECTOR
    policy: str | None = None
    budget: KVBudget | int | str | None = None
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    where: Where | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: says which cannot be.
        """
        if self.k < 1:
            raise ConfigError(f"k, the number of passages, must be at least 1, got {self.k}")
        parse_selector(self.selector)
        choose_policy(self.policy, as_budget(self.budget))


def choose(model: LanguageModel, options: AskOptions) -> tuple[Selector, Policy, KVBudget | None]:
    """Selector, policy and budget of the options; `full`, `full` and none for a model that cannot be linked."""
    if not model.can_link:
        return FullSelector(), Full(), None
    budget = as_budget(options.budget)
    return parse_selector(options.selector), choose_policy(options.policy, budget), budget


@dataclass(frozen=True, slots=True)
class Context:
    """First event: the passages the answer will be read from."""

    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the answer's text."""

    text: str


def ask(
    engine: Engine,
    question: str,
    options: AskOptions | None = None,
    passages: list[Retrieved] | None = None,
    history: Sequence[Turn] = (),
    clock: StageClock | None = None,
) -> Iterator[Context | Delta | Answer]:
    """Answer a question from stored KV.

    Args:
        engine: model, store and index.
        question: in words.
        options: how; defaults as in `AskOptions`.
        passages: answer from these instead of retrieving.
        history: earlier turns, oldest first; their KV is stored, and used again exactly. See `history.py`.
        clock: runs since the question was asked, where something was done for it before; None: a new one.

    Yields:
        One `Context`, then `Delta`s as they are decoded, then the `Answer`.

    Raises:
        QuestionTooLongError: the question alone fills the context window.
        ConfigError: the question is empty.
    """
    options = options or AskOptions()
    selector, policy, budget = choose(engine.model, options)
    clock, draft = clock or StageClock(), Draft(engine, question, selector, policy)

    with clock.stage("retrieve"):
        if passages is None:
            passages = retrieve(engine, search_text(question, history), options.k, options.where)
        found = draft.distinct(passages)
        room = engine.model.window - options.decode.max_tokens
        frame = draft.frame(history, room)
        prompt = draft.place(found, build_prompt(frame, draft.question_ids, [p.token_ids for p in found], room))

    with clock.stage("load"):
        loader = engine.loader  # once: an ingest with another encoding may change it meanwhile
        stored = draft.load(loader)
    yield Context(draft.sources)

    with clock.stage("link"):
        if options.budget is not None and budget is None:
            draft.warn("the budget is not applied: this model answers with full prefills only")
        keeping = Keeping(engine.model, prompt, policy, budget, options.decode.max_tokens)
        linked = link(
            engine.model,
            prompt,
            stored,
            selector,
            spare_tokens=options.decode.max_tokens,
            compile_prefix_ids=loader.profile.prefix_ids,
            scores=keeping.sink,
        )
    with clock.stage("evict"):
        kept = keeping.evict(linked.cache)

    draft.linked(linked.num_recomputed, kept, keeping, linked.selection_rows)
    pieces = decode(engine.model, linked.cache, linked.logits[-1], options.decode, keeping.keeper)
    for piece in clock.timed("decode", pieces):
        if text := draft.decoded(piece, clock):
            yield Delta(text)
    yield draft.answer(clock)
