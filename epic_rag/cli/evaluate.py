"""`epic-rag eval TASK…`: how close linked answers are to a full prefill's, and what they are worth."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from epic_rag import config
from epic_rag.cli import options as option
from epic_rag.cli.generate import load_for_command, perplexity_command
from epic_rag.cli.guard import guarded
from epic_rag.cli.output import print_json

if TYPE_CHECKING:
    from epic_rag.evaluation.item import Task
    from epic_rag.evaluation.method import Method
    from epic_rag.model.tokens import TextTokenizer

_HELP = "Measure answers: `eval TASK…`, which is short for `eval run TASK…`, or the perplexity of texts: `eval ppl`."
_RUN = "run"
_PLACES = ("first", "middle", "last")
_HALVES = ("tune", "report")

Tasks = Annotated[
    list[str],
    typer.Argument(
        metavar="TASK...",
        show_default=False,
        help="Such as xquad:8, hotpotqa, musique, dialogsum, jsonl:FILE, ruler-single:TOKENS or needle:TOKENS; "
        "a name that is none lists all.",
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        show_default=False,
        help="ENCODING,SELECTOR[,POLICY@BUDGET][,codec=int8], such as warm:600,lego:4; may be repeated. Default: five "
        "without eviction. full (a full prefill) and bare (no passages) are always measured.",
    ),
]
Items = Annotated[int | None, typer.Option("--items", help="Items of each task. Default: as many as there are.")]
TaskSeed = Annotated[int, typer.Option("--seed", help="Which items, and what stands beside them.")]
Data = Annotated[
    Path | None,
    typer.Option("--data", show_default=False, help="Folder of the data sets. Default: EPIC_RAG_EVAL_DATA."),
]
Corpus = Annotated[
    Path | None,
    typer.Option("--corpus", show_default=False, help="Files in which needle and ruler tasks hide their facts."),
]
HalfOfItems = Annotated[
    str | None, typer.Option("--half", help="One half of the items, tune or report: choose on one, tell the other.")
]
Generate = Annotated[bool, typer.Option("--generate", help="Measure greedy answers too: EM, F1, contains, ROUGE-L.")]
GoldPlace = Annotated[
    str | None,
    typer.Option("--gold-place", help="Where right passages stand: first, middle or last. Default: anywhere."),
]
ChunkTokens = Annotated[
    int | None,
    typer.Option("--chunk-tokens", help="Cut passages into chunks of so many tokens. Default: whole passages."),
]
ChunkStore = Annotated[
    str | None,
    typer.Option("--store", show_default=False, help="Keep encoded chunks in this store, and take them from there."),
]
Out = Annotated[Path, typer.Option("--out", help="Folder of results; what was measured there is not measured again.")]
Plot = Annotated[bool, typer.Option("--plot", help="Draw PNG files into --out; needs the extra 'eval'.")]


class TaskGroup(TyperGroup):
    """A group of commands, one of which need not be named."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override] # typer's own class
        """Put the command's name in front of tasks and options."""
        if args and args[0] not in {*self.commands, "--help"}:
            args = [_RUN, *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    measures = typer.Typer(help=_HELP, no_args_is_help=True, cls=TaskGroup)
    measures.callback()(_measure)
    measures.command(name=_RUN)(guarded(evaluate_command))
    measures.command(name="ppl")(guarded(perplexity_command))
    app.add_typer(measures, name="eval")


def evaluate_command(
    tasks: Tasks,
    model: option.Model = None,
    method: Methods = None,
    items: Items = None,
    seed: TaskSeed = 0,
    data: Data = None,
    corpus: Corpus = None,
    half: HalfOfItems = None,
    generate: Generate = False,
    gold_place: GoldPlace = None,
    chunk_tokens: ChunkTokens = None,
    store: ChunkStore = None,
    out: Out = Path("epic-rag-eval"),
    plot: Plot = False,
    dtype: option.Dtype = "auto",
    device: option.Device = "auto",
    as_json: option.Json = False,
) -> None:
    """Measure how close linked answers are to a full prefill's, and what they are worth.

    For each item the right answer is forced behind the prompt. KL: how far the next-token distributions are from a full
    prefill's; closed: the share of this distance that is gone, compared with none,none; benefit kept: the share of what
    the passages gain in likelihood; rank-4: the right answer is likelier than three wrong ones. Plus-minus is one
    standard error. An interrupted run goes on when it is started again.
    """
    from epic_rag.cli.evaluate_run import Evaluation
    from epic_rag.evaluation.method import DEFAULT_METHODS, parse_methods
    from epic_rag.evaluation.plots import require_matplotlib
    from epic_rag.evaluation.tasks import task_kind
    from epic_rag.kvstore.uri import open_store

    methods = list(method or DEFAULT_METHODS)
    _check(parse_methods(methods), items, half, gold_place, chunk_tokens, store)
    for spec in tasks:
        task_kind(spec)
    if plot:
        require_matplotlib()
    loaded = load_for_command(model, dtype, device)
    about = {"gold_place": gold_place, "chunk_tokens": chunk_tokens, "corpus": None if corpus is None else corpus.name}
    opened = _open_tasks(tasks, loaded.tokenizer, data, corpus, items, seed, half, gold_place, chunk_tokens)
    with nullcontext() if store is None else open_store(store, config.store_key()) as chunks:
        evaluation = Evaluation(loaded, methods, out, seed, about, chunks, generate=generate, plot=plot)
        for task in opened:
            evaluation.measure(task, show=not as_json)
    if as_json:
        print_json(evaluation.results())


def _open_tasks(
    specs: list[str],
    tokenizer: TextTokenizer,
    data: Path | None,
    corpus: Path | None,
    items: int | None,
    seed: int,
    half: str | None,
    gold_place: str | None,
    chunk_tokens: int | None,
) -> list[Task]:
    """Every task, opened before the first is measured, so that a mistake is told at once."""
    from epic_rag.evaluation.tasks import open_task

    configured = config.variable("EPIC_RAG_EVAL_DATA")
    return [
        open_task(
            spec,
            data=data or (Path(configured) if configured else None),
            corpus=corpus,
            tokenizer=tokenizer,
            count=items,
            seed=seed,
            half=half,  # type: ignore[arg-type] # checked
            gold_place=gold_place,  # type: ignore[arg-type] # checked
            chunk_tokens=chunk_tokens,
        )
        for spec in dict.fromkeys(specs)
    ]


def _check(
    methods: tuple[Method, ...],
    items: int | None,
    half: str | None,
    gold_place: str | None,
    chunk_tokens: int | None,
    store: str | None,
) -> None:
    """Refuse what cannot be before a model is loaded."""
    from epic_rag.errors import ConfigError

    for name, value, known in (("--half", half, _HALVES), ("--gold-place", gold_place, _PLACES)):
        if value is not None and value not in known:
            raise ConfigError(f"{name} '{value}': expected one of {', '.join(known)}")
    for name, count in (("--items", items), ("--chunk-tokens", chunk_tokens)):
        if count is not None and count < 1:
            raise ConfigError(f"{name} must be at least 1, got {count}")
    coded = next((method for method in methods if method.codec), None)
    if store is not None and coded is not None:
        raise ConfigError(
            f"method '{coded.name}': with --store the codec is the store's own: leave it out of the method and write "
            f"--store '{store}?codec={coded.codec}'"
        )


def _measure() -> None:
    """Measure answers, or the perplexity of texts."""
