"""`ChatEpic`, a LangChain chat model: documents come with the call, and their KV is stored for the next one."""

from langchain_core.output_parsers import StrOutputParser

from epic_rag.config import share_cores

share_cores()  # before torch is imported

from epic_rag import ChatEpic

DOCUMENTS = ["The harbour office opens at nine.", "The night ferry to Skeldry is called the Grey Heron."]

chat = ChatEpic.from_store("memory://", max_tokens=24)
print("answer: ", end="")
for piece in (chat.bind(documents=DOCUMENTS) | StrOutputParser()).stream("What is the night ferry to Skeldry called?"):
    print(piece, end="", flush=True)
print()

message = chat.invoke("When does the harbour office open?", documents=DOCUMENTS)
print("answer:", message.text)
print("usage:", message.usage_metadata)
