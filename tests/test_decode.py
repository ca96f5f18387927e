from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import make_tiny, make_tokenizer

from epic_rag.decode import DecodeOptions, Sampler, TextStream, decode
from epic_rag.errors import ConfigError
from epic_rag.model import LanguageModel
from epic_rag.model.tokens import TextTokenizer

TOKENIZER = TextTokenizer(make_tokenizer())


def shown(text: str, stop: tuple[str, ...] = ()) -> tuple[list[str], str]:
    stream, pieces = TextStream(TOKENIZER, stop), []
    for token in TOKENIZER.encode(text):
        pieces.append(stream.add(token))
        if stream.stopped:
            break
    pieces.append(stream.finish())
    return pieces, "".join(pieces)


@given(st.text(max_size=30))
def test_a_stream_shows_all_text_and_never_half_a_character(text: str) -> None:
    pieces, total = shown(text)
    assert total == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(st.text(alphabet="abST", max_size=30))
def test_nothing_of_a_stop_string_is_ever_shown(text: str) -> None:
    _, total = shown(text, ("STOP", "TT"))
    ends = [text.find(stop) for stop in ("STOP", "TT") if stop in text]
    assert total == (text[: min(ends)] if ends else text)


def test_top_p_leaves_the_smallest_set_and_always_one() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    for top_p, allowed in (
        (0.01, {0}),
        (0.5, {0}),
        (0.6, {0, 1}),
        (0.8, {0, 1}),
        (0.9, {0, 1, 2}),
        (1.0, {0, 1, 2, 3}),
    ):
        sampler = Sampler(DecodeOptions(temperature=1.0, top_p=top_p, seed=0), torch.device("cpu"))
        assert {sampler.pick(logits) for _ in range(300)} == allowed


def test_temperature_sharpens_and_a_seed_repeats() -> None:
    logits = torch.log(torch.tensor([0.6, 0.4]))

    def draws(temperature: float, seed: int) -> list[int]:
        sampler = Sampler(DecodeOptions(temperature=temperature, seed=seed), torch.device("cpu"))
        return [sampler.pick(logits) for _ in range(400)]

    assert draws(1.0, 5) == draws(1.0, 5)
    assert draws(1.0, 5) != draws(1.0, 6)
    assert 110 < sum(draws(1.0, 5)) < 210
    assert sum(draws(0.2, 5)) < 90
    assert sum(draws(0.0, 5)) == 0


def tokens_of(model: LanguageModel, options: DecodeOptions) -> list[int]:
    prompt = list(range(40, 70))
    cache = model.new_cache(len(prompt) + options.max_tokens)
    logits = model.forward(model.ids(prompt), model.positions(0, len(prompt)), cache)[-1]
    pieces = list(decode(model, cache, logits, options))
    assert pieces[-1].num_tokens <= options.max_tokens
    return [piece.num_tokens for piece in pieces]


def test_greedy_decoding_equals_transformers_generate() -> None:
    model, prompt = make_tiny("llama"), list(range(40, 70))
    model.eos_ids = frozenset()
    cache = model.new_cache(len(prompt) + 24)
    logits = model.forward(model.ids(prompt), model.positions(0, len(prompt)), cache)[-1]
    text = "".join(piece.text for piece in decode(model, cache, logits, DecodeOptions(max_tokens=24)))
    model.hf_model.generation_config.eos_token_id = None
    ids = model.hf_model.generate(
        model.ids(prompt)[None], max_new_tokens=24, do_sample=False, attention_mask=torch.ones(1, len(prompt))
    )
    assert text == model.tokenizer.decode(ids[0, len(prompt) :].tolist())


def test_max_tokens_and_eos_end_an_answer() -> None:
    model = make_tiny("llama")
    model.eos_ids = frozenset()
    assert tokens_of(model, DecodeOptions(max_tokens=1)) == [1, 1]
    assert tokens_of(model, DecodeOptions(max_tokens=5))[-1] == 5
    model.eos_ids = frozenset(range(300))
    assert tokens_of(model, DecodeOptions(max_tokens=5)) == [0]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", 1e-42),
        ("seed", -1),
        ("seed", 2**70),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("stop", ("",)),
    ],
)
def test_values_that_cannot_be_are_refused(option: str, value: object) -> None:
    with pytest.raises(ConfigError):
        DecodeOptions(**{option: value})  # type: ignore[arg-type]
