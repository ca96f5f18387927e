"""`epic-rag generate | eval ppl`: plain prompts and plain texts, with the KV cache kept within a budget."""

from __future__ import annotations

import math
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epic_rag import config
from epic_rag.cli.guard import guarded
from epic_rag.cli.options import Device, Dtype, Json, MaxTokens, Model, Seed, Stop, Temperature, TopP
from epic_rag.cli.output import print_json

if TYPE_CHECKING:
    from epic_rag.evict import KVBudget
    from epic_rag.generate import GenerateReport
    from epic_rag.model import LanguageModel
    from epic_rag.perplexity import Perplexity

Budget = Annotated[
    str | None,
    typer.Option(help="KV that may stay: tokens (1024), a share of the prompt (25%) or bytes (64MB). Default: all."),
]
Policy = Annotated[
    str | None,
    typer.Option(help="Which tokens are evicted: roco, h2o, tova, recency, random, full. Default: roco with a budget."),
]
Stride = Annotated[int, typer.Option(help="Tokens prefilled between two evictions.")]


def register(app: typer.Typer) -> None:
    """Add the command to the program; `eval ppl` stands beside `eval`."""
    app.command(name="generate")(guarded(generate_command))


def generate_command(
    file: Annotated[str, typer.Argument(help="The prompt: a text file, or - for standard input.", show_default=False)],
    model: Model = None,
    budget: Budget = None,
    policy: Policy = None,
    mode: Annotated[
        str, typer.Option(help="What the budget is for: encoding (the prompt), decoding (the answer) or auto (both).")
    ] = "auto",
    stride: Stride = config.DEFAULT_STRIDE_TOKENS,
    chat: Annotated[
        bool, typer.Option("--chat/--plain", help="Answer as an assistant does, or continue the text.")
    ] = False,
    max_tokens: MaxTokens = config.DEFAULT_MAX_TOKENS,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    stop: Stop = None,
    compat: Annotated[str | None, typer.Option(help="easykv: decide as EasyKV's RoCo does, quirks included.")] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Continue or answer a long prompt whose KV is kept within a budget."""
    from epic_rag.decode import DecodeOptions
    from epic_rag.generate import GenerateOptions, Generation
    from epic_rag.generate.prompt import text_ids

    chosen, limit = _policy(policy, budget)
    how = DecodeOptions(max_tokens, temperature, top_p, seed, tuple(stop or ()))
    options = GenerateOptions(chosen, limit, mode, stride, compat, how)
    text = _read(file)
    loaded = load_for_command(model, dtype, device)
    generation = Generation(loaded, text_ids(loaded.tokenizer, text, chat=chat), options)
    answer = ""
    for piece in generation:
        answer += piece.text
        if not as_json:
            typer.echo(piece.text, nl=False)
    report = generation.report()
    if not as_json:
        typer.echo()
        typer.echo(_line(report), err=True)
        return
    named = {"policy": chosen, "budget": report.budget_tokens, "mode": mode, "stride": stride, "compat": compat}
    print_json({"answer": answer, **_figures(report), **named, "model": loaded.name})


def perplexity_command(
    files: Annotated[list[str], typer.Argument(help="Text files, or - for standard input.", show_default=False)],
    model: Model = None,
    budget: Budget = None,
    policy: Policy = None,
    stride: Stride = config.DEFAULT_STRIDE_TOKENS,
    max_tokens: Annotated[int | None, typer.Option(help="Take so many tokens of each text. Default: all.")] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Perplexity of texts while the KV cache is kept within a budget.

    Each text is taken in strides, and tokens are evicted after each; a text's first token is not counted.
    """
    from epic_rag.errors import ConfigError
    from epic_rag.generate.prompt import text_ids
    from epic_rag.perplexity import perplexity

    if max_tokens is not None and max_tokens < 2:
        raise ConfigError(f"--max-tokens must be at least 2, got {max_tokens}: the first token is not predicted")
    if files.count("-") > 1:
        raise ConfigError(f"standard input can be read once only, got '-' {files.count('-')} times")
    chosen, limit = _policy(policy, budget)
    texts = [_read(file) for file in files]
    loaded = load_for_command(model, dtype, device)
    measured = []
    for file, text in zip(files, texts, strict=True):
        found = perplexity(loaded, text_ids(loaded.tokenizer, text)[:max_tokens], chosen, limit, stride)
        measured.append((file, found))
        if not as_json:
            tokens = f"{found.num_tokens} tokens, at most {found.peak_slots} slots, {found.seconds:.1f} s"
            typer.echo(f"{found.perplexity:.3f}  {file}  ({tokens})")
    mean, error = _mean([found.nll for _, found in measured])
    if as_json:
        texts_found = [_text_figures(file, found) for file, found in measured]
        named = {"policy": chosen, "budget": budget, "stride": stride, "model": loaded.name}
        summary = {"nll": mean, "nll_standard_error": error, "perplexity": math.exp(mean)}
        print_json({**summary, "texts": texts_found, **named})
    elif error is not None:
        typer.echo(f"{math.exp(mean):.3f}  mean of {len(measured)} texts  (nll {mean:.4f} +- {error:.4f})")


def _policy(policy: str | None, budget: str | None) -> tuple[str, KVBudget | None]:
    """Policy and budget as asked for, checked before anything is loaded."""
    from epic_rag.evict import as_budget, unseeded_policy

    limit = as_budget(budget)
    return unseeded_policy(policy, limit).name, limit


def _read(file: str) -> str:
    """The text of a file or of standard input."""
    from epic_rag.errors import PromptError
    from epic_rag.loading.decode import decode_text
    from epic_rag.loading.document import SkipSourceError

    if file == "-" and sys.stdin is None:
        raise PromptError("standard input is closed: give a file, or text on standard input")
    data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    try:
        return decode_text(data)
    except SkipSourceError as error:
        raise PromptError(f"cannot read '{file}': {error}; give a text file") from error


def load_for_command(model: str | None, dtype: str, device: str) -> LanguageModel:
    """Load a model that must be linkable, without the progress bars of the libraries."""
    from epic_rag.engine import model_spec
    from epic_rag.model import load_model
    from epic_rag.model.load import silence_progress

    silence_progress()
    return load_model(model_spec(model), cache_folder=config.cache_folder(), dtype=dtype, device=device)


def _figures(report: GenerateReport) -> dict[str, object]:
    return {
        "tokens": {
            "prompt": report.prompt_tokens,
            "kept": report.kept_tokens,
            "peak_slots": report.peak_slots,
            "answer": report.answer_tokens,
        },
        "kv_bytes": {"peak": report.peak_bytes, "full": report.full_bytes},
        "timings": {
            "prefill_seconds": report.prefill_seconds,
            "decode_seconds": report.decode_seconds,
            "ttft_seconds": report.ttft_seconds,
            "total_seconds": report.total_seconds,
        },
    }


def _line(report: GenerateReport) -> str:
    tokens = f"{report.prompt_tokens} tokens, {report.kept_tokens} kept, {report.answer_tokens} in the answer"
    size = f"{report.peak_bytes / 1e6:.1f} of {report.full_bytes / 1e6:.1f} MB of KV"
    return f"{tokens}; {size}; prefill {report.prefill_seconds:.2f} s, decode {report.decode_seconds:.2f} s"


def _text_figures(file: str, found: Perplexity) -> dict[str, object]:
    return {
        "source": file,
        "tokens": found.num_tokens,
        "nll": found.nll,
        "perplexity": found.perplexity,
        "kept": found.kept_tokens,
        "peak_slots": found.peak_slots,
        "seconds": found.seconds,
    }


def _mean(values: list[float]) -> tuple[float, float | None]:
    """Mean and its standard error; None for a single value."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return statistics.fmean(values), error
