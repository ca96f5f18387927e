"""A store on disk outlives the process: run this twice, and the second run encodes nothing."""

from pathlib import Path

from epic_rag.config import share_cores

share_cores()  # before torch is imported

from epic_rag import EpicRAG
from epic_rag.ingest import ingest

rag = EpicRAG.from_store("disk://.demo/example-store", k=4, max_tokens=32)
report = ingest(rag.engine, [Path(__file__).parent / "documents" / "food" / "bakery-bread-process.md"])
print(f"chunks: {report.chunks}, encoded now: {report.encoded}, found in the store: {report.reused}")

out = rag.invoke("What is the starter of the Mill Lane loaf called?")
print("answer:", out["answer"])
print("tokens read from the store:", out["usage"]["input_token_details"]["cache_read"])
rag.engine.close()
