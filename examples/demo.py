"""The main job in one command: ingest two folders, ask two questions, and show where the time went.

    python examples/demo.py [--model MODEL] [--store FOLDER] [QUESTION ...]

`make demo` runs it with the demo model. A second run finds everything in the store and encodes nothing again.
"""

from __future__ import annotations

import argparse
import logging
import os
from contextlib import closing
from pathlib import Path

from epic_rag.config import share_cores

share_cores()  # before torch is imported

from rich.console import Console
from rich.text import Text

from epic_rag import AskOptions, DecodeOptions, EpicError, open_engine
from epic_rag.ask import Context, Delta, ask
from epic_rag.cli.show import ingest_progress, show_ingest, show_sources, stage_table, token_line
from epic_rag.engine import Engine
from epic_rag.ingest import ingest
from epic_rag.kvstore.errors import StoreError
from epic_rag.model.load import silence_progress
from epic_rag.retrievers.errors import RetrieverError
from epic_rag.schema import Answer

ROOT = Path(__file__).resolve().parent.parent
QUESTIONS = (
    "What is the starter of the Mill Lane loaf called?",
    "What had the pendulum suspension spring of the Wendrake clock been replaced with?",
)
CONSOLE = Console(highlight=False, emoji=False)


def answer(engine: Engine, question: str, selector: str, *, show: bool) -> Answer:
    """Ask once; print the answer as it comes when `show`."""
    options = AskOptions(k=8, selector=selector, decode=DecodeOptions(max_tokens=48))
    for event in ask(engine, question, options):
        if isinstance(event, Delta) and show:
            CONSOLE.print(event.text, end="", markup=False, soft_wrap=True)
        elif isinstance(event, Answer):
            return event
        elif isinstance(event, Context) and show:
            CONSOLE.print("\n[bold]answer:[/bold] ", end="")
    raise RuntimeError("ask ended without an answer")


def show_question(engine: Engine, question: str) -> None:
    """Answer a question from stored KV and once more by a full prefill of the same tokens, side by side."""
    CONSOLE.rule()
    CONSOLE.print(Text.assemble(("question: ", "bold"), question), soft_wrap=True)
    linked = answer(engine, question, "lego:4", show=True)
    CONSOLE.print("\n")
    show_sources(CONSOLE, linked.sources)
    full = answer(engine, question, "full", show=False)
    CONSOLE.print(Text.assemble(("\nanswer of a full prefill: ", "bold"), f"{full.answer}\n"), soft_wrap=True)
    CONSOLE.print(stage_table([("linked", linked), ("full prefill", full)]))
    ratio = full.timings.ttft_seconds / linked.timings.ttft_seconds
    CONSOLE.print(
        f"first token: {linked.timings.ttft_seconds:.3f} s linked, {full.timings.ttft_seconds:.3f} s by a full prefill "
        f"of the same {full.tokens.context} tokens ({ratio:.1f} times sooner)",
        soft_wrap=True,
    )
    CONSOLE.print(token_line(linked))


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="*", default=QUESTIONS)
    parser.add_argument("--model", help="hub id, folder or .gguf file; default: the demo model")
    parser.add_argument("--store", default=str(ROOT / ".demo" / "store"))
    options = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    silence_progress()
    try:
        with closing(open_engine(options.store, options.model)) as engine:
            os.chdir(ROOT)  # sources are then named relative to the project
            with ingest_progress(quiet=False) as progress:
                report = ingest(engine, [Path("docs"), Path("examples/documents")], None, progress)
            show_ingest(report, as_json=False)
            answer(engine, options.questions[0], "full", show=False)  # the first forward of a process is slower
            for question in options.questions:
                show_question(engine, question)
    except (EpicError, StoreError, RetrieverError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
