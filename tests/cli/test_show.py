"""What is printed for people is what was said: no markup, no emoji, no doubled backslash."""

from __future__ import annotations

import pytest
from corpus import make_engine
from rich.console import Console

from epic_rag.ask import AskOptions, Delta, ask
from epic_rag.cli.show import show_answer, show_sources
from epic_rag.decode import DecodeOptions
from epic_rag.schema import Answer, Source

ODD = r"[bold]C:\new\ :warning: [/x] \[a]\\"


def test_an_answer_is_printed_as_it_is(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = make_engine(tmp_path / "store")
    answer = list(ask(engine, "Who?", AskOptions(decode=DecodeOptions(1))))[-1]
    assert isinstance(answer, Answer)
    show_answer(iter([Delta(ODD), Delta(ODD), answer]), as_json=False)
    assert capsys.readouterr().out.startswith(ODD + ODD + "\n")


def test_a_source_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    source = Source(source=ODD, position=3, title="", line=7, text="", score=0.5, key="", tier="disk")
    show_sources(Console(highlight=False, emoji=False, width=200), (source,))
    assert capsys.readouterr().out == f"[1] {ODD}:7  chunk 3, from disk, score 0.50\n"
