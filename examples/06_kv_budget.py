"""A KV budget: RoCo keeps the tokens of the context that attention needs, and drops the rest before decoding."""

from pathlib import Path

from epic_rag.config import share_cores

share_cores()  # before torch is imported

from epic_rag import AskOptions, DecodeOptions, open_engine
from epic_rag.ask import ask
from epic_rag.ingest import ingest
from epic_rag.schema import Answer

engine = open_engine("memory://")
ingest(engine, [Path(__file__).parent / "documents" / "food" / "bakery-bread-process.md"])

question = "What is the starter of the Mill Lane loaf called?"
for budget in (None, "75%", "50%"):
    *_, last = ask(engine, question, AskOptions(k=4, budget=budget, decode=DecodeOptions(max_tokens=24)))
    if isinstance(last, Answer):
        tokens, kept_mb = last.tokens, last.kv_bytes.kept / 1e6
        print(f"budget {budget or 'none'}: {tokens.kept} of {tokens.context} tokens kept ({kept_mb:.1f} MB)")
        print("  answer:", " ".join(last.answer.split()))
