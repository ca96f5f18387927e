"""Memory over Redis: many machines share what one of them has encoded. REDIS_URL names the server."""

import os
from pathlib import Path

from epic_rag.config import share_cores

share_cores()  # before torch is imported

from epic_rag import EpicRAG
from epic_rag.ingest import ingest
from epic_rag.kvstore.errors import StoreError
from epic_rag.kvstore.uri import open_store

url = os.environ.get("REDIS_URL", "redis://localhost:6379")
try:
    with open_store(url) as redis:
        redis.stats()  # asks the server
except StoreError as error:  # a chain would go on without it, encode anew, and try it again later
    raise SystemExit(f"no Redis to work with; start one, or set REDIS_URL: {error}") from None

rag = EpicRAG.from_store(f"tiered:memory://?budget=1GB,{url}", k=4, max_tokens=32)
report = ingest(rag.engine, [Path(__file__).parent / "documents" / "food" / "bakery-bread-process.md"])
print(f"chunks: {report.chunks}, encoded now: {report.encoded}, found in the store: {report.reused}")
print("answer:", rag.invoke("What is the starter of the Mill Lane loaf called?")["answer"])
rag.engine.close()
