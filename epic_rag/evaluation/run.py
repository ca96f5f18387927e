"""Measure methods on the items of a task: each prompt is linked once for each method, and answers are forced behind it.

The measures of a record:

* kl, kl_first     KL(full prefill || method) over the tokens of the gold answer, their mean and the first one's, nats
* agree            share of these tokens where both would pick the same one
* nll, nll_sum     negative log-likelihood of the gold answer, per token and in all, nats
* rank4            1 where the gold answer has a higher mean log-likelihood than each of the three wrong ones
* rows             rows computed, the choosing of them included, by tokens of the prompt
* context_rows     the same without the question's rows, by tokens in front of it
* kept             slots that stay in the KV cache when the answer begins, by tokens of the prompt
* link_seconds     linking alone, to the logits of the first token; encoding, loading and evicting are not in it
* em, f1, contains, rouge_l, recall   of a greedy answer, where one is asked for
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import torch
from torch import Tensor

from epic_rag import __version__
from epic_rag.errors import ConfigError
from epic_rag.evaluation.encoders import LIMIT_BYTES, ChunkEncoder, ChunkLibrary
from epic_rag.evaluation.item import Task
from epic_rag.evaluation.measures import agreement, answer_measures, is_first, kl, token_nll
from epic_rag.evaluation.method import Method, parse_methods
from epic_rag.evaluation.prepare import PreparedItem, prepare
from epic_rag.evaluation.records import Record, Records, digest_of
from epic_rag.evaluation.scoring import Ready, force, greedy
from epic_rag.evict import Keeping, parse_policy
from epic_rag.kvstore.store import KVStore
from epic_rag.link import Linked, link
from epic_rag.model import LanguageModel
from epic_rag.prompt import INSTRUCTION, Prompt, prompt_frame
from epic_rag.selectors import parse_selector

OnItem = Callable[[int, int], None]
"""Told after every item: items done, and items in all."""


def evaluate(
    model: LanguageModel,
    task: Task,
    methods: Sequence[str],
    *,
    records: Records | None = None,
    seed: int = 0,
    generate: bool = False,
    on_item: OnItem | None = None,
    store: KVStore | None = None,
    extra_encoders: Mapping[str, ChunkEncoder] | None = None,
    instruction: str = INSTRUCTION,
    limit_bytes: int = LIMIT_BYTES,
) -> list[Record]:
    """Measure methods, and `full` and `bare`, on all items of a task.

    Args:
        model: one that can be linked.
        task: what is asked.
        methods: as `parse_method` reads them.
        records: where they are kept; what is there already is not measured again.
        seed: of the task; kept with the records.
        generate: measure greedy answers too.
        on_item: told how far it is.
        store: keeps the encoded chunks; not closed here.
        extra_encoders: encodings of the caller's own, by the name that methods use.
        instruction: the system message.
        limit_bytes: KV of chunks kept in memory.

    Returns:
        A record for each item and method, in this order.

    Raises:
        ConfigError: a method that is none, or records of other settings or other items.
        PromptError: an item that does not fit.
    """
    chosen = parse_methods(methods, tuple(extra_encoders or ()))
    frame = prompt_frame(model.tokenizer, instruction)
    library = ChunkLibrary(
        model,
        frame,
        task.corpus,
        store=store,
        statistics=any(method.wants_statistics for method in chosen),
        extra=extra_encoders,
        limit_bytes=limit_bytes,
    )
    if records is not None:
        records.begin(_settings(model, task, seed, instruction))
    found: list[Record] = []
    items = prepare(model, frame, task.items)
    with torch.inference_mode():
        for number, item in enumerate(items, 1):
            found += measure_item(model, library, item, chosen, records, generate=generate)
            if on_item is not None:
                on_item(number, len(items))
    return found


def measure_item(
    model: LanguageModel,
    library: ChunkLibrary,
    item: PreparedItem,
    methods: Sequence[Method],
    records: Records | None,
    *,
    generate: bool,
) -> list[Record]:
    """Measure what is missing of one item, and keep it."""
    known = {method.name: _known(records, item, method, library, generate) for method in methods}
    missing = [method for method in methods if known[method.name] is None]
    if missing:
        reference = prefilled(model, item.prompt, item.gold)
        new = [measure(model, library, item, method, reference, generate=generate) for method in missing]
        known.update({record.method: record for record in new})
        if records is not None:
            records.add(new)
    return [record for record in known.values() if record is not None]


def measure(
    model: LanguageModel,
    library: ChunkLibrary,
    item: PreparedItem,
    method: Method,
    reference: Tensor,
    *,
    generate: bool,
) -> Record:
    """Measure one method on one item; `reference`: log probabilities `[A, V]` of the full prefill."""
    whole = item.prompt if method.with_documents else item.bare
    prompt = library.prompt(method.encoding, whole) if parse_selector(method.selector).needs_stored_kv else whole
    linked, ready, kept, seconds = linked_prompt(model, library, prompt, method, item.spare_tokens)
    got = force(model, ready, item.gold)
    gold = token_nll(got, model.ids(item.gold))
    distances = kl(reference, got)
    values = {
        "kl": float(distances.mean()),
        "kl_first": float(distances[0]),
        "agree": agreement(reference, got),
        "nll": float(gold.mean()),
        "nll_sum": float(gold.sum()),
        "prompt_tokens": float(prompt.num_tokens),
        "answer_tokens": float(len(item.gold)),
        "link_seconds": seconds,
        "kept": kept / prompt.num_tokens,
    }
    if method.with_documents:
        values |= _rows(prompt, linked.num_recomputed + linked.selection_rows)
    if item.choices:
        others = [-float(token_nll(force(model, ready, ids), model.ids(ids)).mean()) for ids in item.choices]
        values["rank4"] = is_first(-values["nll"], others)
    answer = greedy(model, ready, item.item.max_answer_tokens) if generate else None
    if answer is not None:
        values |= answer_measures(answer, item.item.answers, item.item.parts)
    return Record(item.item.id, method.name, item.content, library.digest(method.encoding), values, answer)


def linked_prompt(
    model: LanguageModel, library: ChunkLibrary, prompt: Prompt, method: Method, spare_tokens: int
) -> tuple[Linked, Ready, int, float]:
    """The prompt, linked and evicted, the slots that stay, and the seconds that linking took."""
    selector, budget = parse_selector(method.selector), method.kv_budget
    stored = library.stored(method.encoding, prompt, method.codec) if selector.needs_stored_kv else []
    keeping = Keeping(model, prompt, parse_policy(method.policy or "full", budget), budget, spare_tokens)
    began = perf_counter()
    linked = link(
        model,
        prompt,
        stored,
        selector,
        spare_tokens=spare_tokens,
        compile_prefix_ids=library.prefix_ids(method.encoding),
        scores=keeping.sink,
    )
    linked.logits[-1].argmax().item()  # a GPU has computed only what was asked for
    seconds = perf_counter() - began
    kept = keeping.evict(linked.cache)
    return linked, Ready(linked.cache, linked.logits[-1], keeping), kept, seconds


def prefilled(model: LanguageModel, prompt: Prompt, answer: Sequence[int]) -> Tensor:
    """Log probabilities of an answer behind a full prefill, apart from selectors and linking, `[A, V]` fp64."""
    cache = model.new_cache(prompt.num_tokens + len(answer))
    positions = model.positions(0, prompt.num_tokens)
    logits = model.forward(model.ids(prompt.token_ids), positions, cache)
    return force(model, Ready(cache, logits[-1], Keeping(model, prompt, parse_policy("full", None), None, 0)), answer)


def _rows(prompt: Prompt, num_rows: float) -> dict[str, float]:
    suffix, context = len(prompt.suffix_ids), prompt.suffix_start
    return {"rows": num_rows / prompt.num_tokens, "context_rows": (num_rows - suffix) / max(1, context)}


def _known(
    records: Records | None, item: PreparedItem, method: Method, library: ChunkLibrary, generate: bool
) -> Record | None:
    """The record that is there already, unless it lacks the greedy answer.

    Raises:
        ConfigError: it is of another text or another compile prefix.
    """
    record = None if records is None else records.find(item.item.id, method.name)
    if records is None or record is None or (generate and record.answer is None):
        return None
    for what, there, now in (
        ("text", record.content, item.content),
        (f"compile prefix of '{method.encoding}'", record.prefix, library.digest(method.encoding)),
    ):
        if there != now:
            raise ConfigError(
                f"{records.path}: item '{record.item}' was measured with another {what} ({there} there, {now} now): "
                "the data have changed; choose another folder with --out, or remove the file"
            )
    return record


def _settings(model: LanguageModel, task: Task, seed: int, instruction: str) -> dict[str, str | int | None]:
    return {
        "model": model.fingerprint,
        "dtype": str(model.dtype).removeprefix("torch."),
        "task": task.name,
        "seed": seed,
        "instruction": digest_of(instruction),
        "version": __version__,
    }
