"""An ordinary chat, without documents: the stages of `ask`, with no word of passages in the prompt."""

from __future__ import annotations

from collections.abc import Iterator

from epic_rag.ask import AskOptions, Delta, choose
from epic_rag.chat.messages import Conversation
from epic_rag.decode import decode
from epic_rag.draft import Draft
from epic_rag.engine import Engine
from epic_rag.evict import Keeping
from epic_rag.history import fitting_frame
from epic_rag.link import link
from epic_rag.metrics import StageClock
from epic_rag.prompt import build_prompt
from epic_rag.schema import Answer


def chat(engine: Engine, asked: Conversation, options: AskOptions) -> Iterator[Delta | Answer]:
    """Answer without documents. Earlier turns' KV is stored, and used again exactly.

    Args:
        engine: model and store.
        asked: system message, earlier turns and the question.
        options: how.

    Yields:
        `Delta`s as they are decoded, then the `Answer`.

    Raises:
        QuestionTooLongError: the question alone fills the context window.
        ConfigError: the question is empty.
    """
    selector, policy, budget = choose(engine.model, options)
    clock, draft = StageClock(), Draft(engine, asked.question, selector, policy)

    with clock.stage("retrieve"):
        room = engine.model.window - options.decode.max_tokens
        room_for_turns = room - len(draft.question_ids)
        frame, warning = fitting_frame(engine.model.tokenizer, asked.turns, room_for_turns, instruction=None)
        if warning:
            draft.warn(warning)
        prompt = draft.place([], build_prompt(frame, draft.question_ids, [], room))
    with clock.stage("load"):
        stored = draft.load(engine.prefix_loader)
    with clock.stage("link"):
        if options.budget is not None and budget is None:
            draft.warn("the budget is not applied: this model answers with full prefills only")
        keeping = Keeping(engine.model, prompt, policy, budget, options.decode.max_tokens)
        linked = link(
            engine.model, prompt, stored, selector, spare_tokens=options.decode.max_tokens, scores=keeping.sink
        )
    with clock.stage("evict"):
        kept = keeping.evict(linked.cache)

    draft.linked(linked.num_recomputed, kept, keeping)
    pieces = decode(engine.model, linked.cache, linked.logits[-1], options.decode, keeping.keeper)
    for piece in clock.timed("decode", pieces):
        if text := draft.decoded(piece, clock):
            yield Delta(text)
    yield draft.answer(clock)
