"""Ask in ten lines: documents are read and prefilled once, then a question is answered from their stored KV."""

from pathlib import Path

from epic_rag.config import share_cores

share_cores()  # before torch is imported

from epic_rag import EpicRAG
from epic_rag.ingest import ingest

rag = EpicRAG.from_store("memory://", k=4, max_tokens=32)
ingest(rag.engine, [Path(__file__).parent / "documents" / "food" / "bakery-bread-process.md"])

out = rag.invoke("What is the starter of the Mill Lane loaf called?")
print("answer:", out["answer"])
for passage in out["context"]:
    print("source:", Path(passage.metadata["source"]).name, "line", passage.metadata["line"])
