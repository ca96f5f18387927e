import json
import shutil

import numpy as np
import pytest
import torch
from tiny_models import make_tokenizer
from transformers import BertConfig, BertModel

from epic_rag.errors import ConfigError, ModelNotFoundError
from epic_rag.model import sentence
from epic_rag.model.sentence import SentenceEmbeddings

TEXTS = ["a short one", "x", "a much longer text about the ferry and the lighthouse " * 3, "", "another one"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny encoder with random weights."""
    folder, tokenizer = tmp_path_factory.mktemp("encoder"), make_tokenizer()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id or 0,
    )
    BertModel(config).eval().save_pretrained(folder)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    tokenizer.save_pretrained(folder)
    return folder


def pool_by(folder, **modes):
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))


def by_hand(folder, text, first=False, max_tokens=64):
    """One text alone, without padding."""
    model, tokenizer = BertModel.from_pretrained(folder).eval(), make_tokenizer()
    ids = tokenizer(text)["input_ids"][:max_tokens]
    with torch.inference_mode():
        hidden = model(torch.tensor([ids])).last_hidden_state[0]
    vector = (hidden[0] if first else hidden.mean(0)).numpy()
    return vector / np.linalg.norm(vector)


def test_vectors_are_those_of_each_text_alone(folder, monkeypatch):
    monkeypatch.setattr(sentence, "_BATCH_TOKENS", 50)
    texts = [text for text in TEXTS if text]
    found = SentenceEmbeddings(str(folder)).embed_documents(texts)
    for text, vector in zip(texts, found, strict=True):
        assert np.allclose(vector, by_hand(folder, text), atol=1e-5)


def test_questions_are_embedded_like_passages(folder):
    embeddings = SentenceEmbeddings(str(folder))
    assert np.allclose(embeddings.embed_query(TEXTS[0]), embeddings.embed_documents(TEXTS)[0], atol=1e-5)
    assert embeddings.embed_documents([]) == []


def test_an_empty_text_gives_finite_numbers(folder):
    assert np.isfinite(SentenceEmbeddings(str(folder)).embed_documents(TEXTS)).all()


def test_the_first_token_where_the_model_says_so(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "first")
    pool_by(copy, pooling_mode_cls_token=True, pooling_mode_mean_tokens=False)
    (copy / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    found = SentenceEmbeddings(str(copy)).embed_query(TEXTS[2])
    assert np.allclose(found, by_hand(folder, TEXTS[2], first=True, max_tokens=8), atol=1e-5)
    pool_by(copy, pooling_mode_max_tokens=True)
    with pytest.raises(ConfigError, match="makes its vectors by pooling_mode_max_tokens; known here are"):
        SentenceEmbeddings(str(copy))
    pool_by(copy, pooling_mode_mean_tokens=True)
    (copy / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense"}]')
    with pytest.raises(ConfigError, match="by Dense, pooling_mode_mean_tokens; known here"):
        SentenceEmbeddings(str(copy))


def test_no_such_model_is_named(tmp_path):
    with pytest.raises(ModelNotFoundError, match="cannot load the embedding model"):
        SentenceEmbeddings(str(tmp_path / "nothing"))


def test_batches_hold_texts_of_like_length():
    batches = list(sentence._batches([5, 2000, 3, 2000, 4000, 0]))
    assert batches == [[4], [1, 3], [0, 2, 5]]
    assert list(sentence._batches([])) == []
