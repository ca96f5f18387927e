"""LangChain's `index()`, again and again: what is unchanged is skipped, what changed is encoded, what went goes."""

from pathlib import Path
from tempfile import TemporaryDirectory

from langchain_core.documents import Document
from langchain_core.indexing import index

from epic_rag.config import share_cores

share_cores()  # before torch is imported

from epic_rag import EpicIndex, open_engine
from epic_rag.retrievers import SQLiteRecordManager

OPENING = {"museum": "The museum opens at nine.", "pool": "The pool opens at seven.", "hall": "The hall opens at ten."}


def documents(texts: dict[str, str]) -> list[Document]:
    return [Document(text, metadata={"source": name}) for name, text in texts.items()]


with TemporaryDirectory() as folder:  # a real corpus keeps its records beside its store
    records = SQLiteRecordManager("opening hours", Path(folder) / "records.sqlite")
    records.create_schema()
    epic_index = EpicIndex(engine=open_engine("memory://"), k=1)
    without_hall = {name: text for name, text in OPENING.items() if name != "hall"}
    for told, texts in (
        ("first run", OPENING),
        ("nothing changed", OPENING),
        ("pool changed, hall gone", without_hall | {"pool": "The pool opens at eight."}),
    ):
        print(told, index(documents(texts), records, epic_index, cleanup="full", key_encoder="blake2b"))
    print(epic_index.invoke("When does the pool open?")[0].page_content.strip())
