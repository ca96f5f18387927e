from __future__ import annotations

import pytest
from corpus import make_engine

from epic_rag import condense as module
from epic_rag.condense import condense
from epic_rag.engine import Engine
from epic_rag.history import Turn
from epic_rag.model.tokens import TextTokenizer
from epic_rag.prompt import build_prompt

QUESTION = "And the bakery?"


@pytest.fixture
def engine() -> Engine:
    engine = make_engine("memory://")
    engine.model.window = 1024
    return engine


@pytest.fixture
def told(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the model is told."""
    told: list[str] = []

    def build(frame: object, ids: list[int], *rest: object) -> object:
        told.append(engine.model.tokenizer.decode(ids))
        return build_prompt(frame, ids, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "build_prompt", build)
    return told


def talk(count: int) -> list[Turn]:
    roles = ("user", "assistant")
    return [Turn(roles[number % 2], f"Turn {number} of the talk about ferries.") for number in range(count)]  # type: ignore[arg-type]


def test_the_latest_turns_that_fit_are_told(engine: Engine, told: list[str]) -> None:
    condense(engine, QUESTION, talk(100))
    numbers = [int(line.split()[2]) for line in told[0].splitlines() if ": Turn " in line]
    assert numbers == list(range(numbers[0], 100)), "the oldest went"
    assert 2 <= len(numbers) < 100
    assert told[0].endswith(f"Last question: {QUESTION}")
    condense(engine, QUESTION, talk(2))
    assert "User: Turn 0 of the talk about ferries.\nAssistant: Turn 1" in told[1]


def test_a_last_turn_larger_than_the_window_goes(engine: Engine, told: list[str]) -> None:
    condense(engine, QUESTION, [*talk(2), Turn("user", "very long " * 2000)])
    assert "Conversation:\n\n\nLast question" in told[0]


@pytest.mark.parametrize("count", [100, 400])
def test_a_long_talk_is_tokenised_once(engine: Engine, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    sizes: list[int] = []
    real = TextTokenizer.encode

    def encode(self: TextTokenizer, text: str) -> list[int]:
        sizes.append(len(text))
        return real(self, text)

    monkeypatch.setattr(TextTokenizer, "encode", encode)
    condense(engine, QUESTION, talk(count))
    assert sum(sizes) < 2 * sum(len(turn.text) for turn in talk(count)) + 4000


def test_a_whole_with_more_tokens_than_its_parts_still_fits(
    engine: Engine, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = TextTokenizer.encode
    monkeypatch.setattr(
        TextTokenizer, "encode", lambda self, text: real(self, text)[:1] if text.endswith("\n") else real(self, text)
    )
    condense(engine, QUESTION, talk(100))
    assert "Turn 99 of" in told[0]
    assert "Turn 0 of" not in told[0]
