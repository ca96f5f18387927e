import pytest
import torch

from epic_rag.encode import Encoder
from epic_rag.model import LanguageModel


def test_an_interrupted_prefill_of_the_prefix_is_made_anew(
    tiny_llama: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, chunk = tuple(range(5, 25)), (30, 31, 32)
    expected = Encoder(tiny_llama, prefix).encode(chunk)
    encoder = Encoder(tiny_llama, prefix)
    with monkeypatch.context() as patch:

        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(LanguageModel, "forward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            encoder.encode(chunk)
    found = encoder.encode(chunk)
    assert torch.equal(found.keys, expected.keys)
    assert torch.equal(found.values, expected.values)
