"""A conversation: earlier turns stand in the prompt, and their KV is stored and used again exactly."""

from pathlib import Path

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from epic_rag.config import share_cores

share_cores()  # before torch is imported

from epic_rag import EpicRAG
from epic_rag.ingest import ingest

rag = EpicRAG.from_store("memory://", k=2, max_tokens=24)
ingest(rag.engine, [Path(__file__).parent / "documents" / "food" / "bakery-bread-process.md"])

chat_history: list[BaseMessage] = []
for question in ("What is the starter of the Mill Lane loaf called?", "How is the starter fed?"):
    out = rag.invoke({"question": question, "chat_history": chat_history})
    print("user:", question)
    print("assistant:", out["answer"])
    chat_history += [HumanMessage(question), AIMessage(out["answer"])]
    print(f"({out['usage']['input_tokens']} tokens of context, {len(chat_history)} messages so far)")
