from __future__ import annotations

import pytest
from corpus import make_engine

from epic_rag import ChatEpic, Engine


@pytest.fixture(scope="module")
def engine() -> Engine:
    engine = make_engine("memory://")
    engine.model.eos_ids = frozenset()
    return engine


@pytest.fixture
def chat(engine: Engine) -> ChatEpic:
    return ChatEpic(engine=engine, max_tokens=8)
