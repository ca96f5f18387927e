"""`epic-rag chat`: from a pipe and at a terminal, answered, stopped, refused and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from corpus import write_corpus

from epic_rag.ask import AskOptions, Context, Delta
from epic_rag.cli.chat import Chat, _piped
from epic_rag.engine import Engine
from epic_rag.errors import QuestionTooLongError
from epic_rag.history import Turn
from epic_rag.schema import Answer

FIRST = "What is fact 3 of the telescope worth?"
SECOND = "And fact 2?"
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Start:
    """Starts `epic-rag` in a process of its own, with a filled store."""
    folder = tmp_path_factory.mktemp("chat")
    known = ("PATH", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in known if name in os.environ}
    environment |= {"HOME": str(folder), "EPIC_RAG_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    environment |= {"EPIC_RAG_MODEL": str(tiny_folder), "EPIC_RAG_STORE": "store", "HF_HUB_OFFLINE": "1"}
    write_corpus(folder / "docs", 4)

    def start(*arguments: str, stdin: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "epic_rag", *arguments],
            cwd=folder, env=environment, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    out, err = (filled := start("ingest", "docs")).communicate(timeout=300)
    assert filled.returncode == 0, out + err
    return start


def test_a_pipe_is_answered_line_by_line(start: Start) -> None:
    chat = start("chat", "--json", "--k", "2", "--max-tokens", "4")
    lines = f"{FIRST}\n\n  \n/what\n{'why ' * 5000}\n{SECOND}\n/reset\n{SECOND}\n/quit\nnever asked\n"
    out, err = (text.decode() for text in chat.communicate(lines.encode(), timeout=300))
    assert chat.returncode == 1, out + err
    first, refused, second, alone = map(json.loads, out.splitlines())
    assert [told["question"] for told in (first, second, alone)] == [FIRST, SECOND, SECOND]
    assert set(first) >= {"answer", "sources", "timings", "tokens"}
    assert set(refused) == {"question", "error"}
    assert "Ask a shorter question" in refused["error"]
    assert second["tokens"]["context"] > alone["tokens"]["context"], "the first turn stands in the second's prompt"
    assert "'/what' is unknown: /reset forgets the conversation" in err
    assert "Traceback" not in out + err


def test_text_from_a_pipe_has_no_prompt_and_names_sources(start: Start) -> None:
    chat = start("chat", "--k", "1", "--max-tokens", "3")
    out, err = (text.decode() for text in chat.communicate(FIRST.encode(), timeout=300))
    assert (chat.returncode, err) == (0, "")
    assert "[1] docs/telescope" in out
    assert "s to the first token" in out
    assert ">" not in out


@pytest.fixture
def _ctrl_c_is_heard() -> Iterator[None]:
    """Tests that run in the background of a shell are started with SIGINT ignored, and hand that on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
@pytest.mark.usefixtures("_ctrl_c_is_heard")
def test_at_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_ends(start: Start) -> None:
    ours, theirs = os.openpty()
    chat = start("chat", "--k", "1", "--max-tokens", "3000", stdin=theirs)
    os.close(theirs)
    assert chat.stdout is not None
    os.write(ours, f"{FIRST}\n".encode())
    shown = b""
    while len(shown) < 20:  # prompt, and the beginning of the answer
        shown += chat.stdout.read(1)
    chat.send_signal(signal.SIGINT)
    os.write(ours, b"/reset\n\x04")
    out, err = chat.communicate(timeout=120)
    os.close(ours)
    assert chat.returncode == 0, out + err
    assert shown.startswith(b"> ")
    assert out.count(b"> ") == 2, "two more prompts"
    assert b"Ctrl-D ends it" in err
    assert err.rstrip().endswith(b"stopped")


class Script:
    """Stands in for `ask`: plays what each question is to bring, and keeps the history it was given."""

    def __init__(self, *events: Sequence[object]) -> None:
        self.events = list(events)
        self.histories: list[tuple[Turn, ...]] = []

    def __call__(
        self, engine: Engine, question: str, options: AskOptions, *, history: tuple[Turn, ...]
    ) -> Iterator[Context | Delta | Answer]:
        self.histories.append(history)
        for event in self.events.pop(0):
            if isinstance(event, BaseException):
                raise event
            yield event  # type: ignore[misc]


def play(monkeypatch: pytest.MonkeyPatch, script: Script, at_terminal: bool = True) -> Chat:
    monkeypatch.setattr("epic_rag.ask.ask", script)
    chat = Chat(object(), AskOptions(), as_json=True, at_terminal=at_terminal)  # type: ignore[arg-type]
    chat.run(iter([f"question {number}" for number in range(len(script.events))]))
    return chat


def test_a_stopped_answer_counts_as_far_as_it_was_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script([Delta("so "), Delta("far"), KeyboardInterrupt()], [KeyboardInterrupt()], [Delta("done")])
    chat = play(monkeypatch, script)
    so_far = (Turn("user", "question 0"), Turn("assistant", "so far"))
    assert script.histories == [(), so_far, so_far]
    assert chat.failed == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0]) == {
        "question": "question 0", "answer": "so far", "stopped": True,
    }  # fmt: skip


def test_what_goes_wrong_ends_one_question_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script([Delta("half"), QuestionTooLongError("too long")], [Delta("whole")])
    chat = play(monkeypatch, script, at_terminal=False)
    assert script.histories == [(), ()]
    assert chat.failed == 1
    assert json.loads(capsys.readouterr().out.splitlines()[0]) == {"question": "question 0", "error": "too long"}


def test_ctrl_c_ends_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(monkeypatch, Script([Delta("half"), KeyboardInterrupt()], [Delta("never")]), at_terminal=False)


def test_a_closed_standard_input_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert list(_piped()) == []
