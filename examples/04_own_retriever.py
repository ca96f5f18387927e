"""Your own retriever in a LangChain chain: its passages are encoded when they are first met, and stored."""

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.retrievers import BaseRetriever

from epic_rag.config import share_cores

share_cores()  # before torch is imported

from epic_rag import EpicRAG


class Shelf(BaseRetriever):
    """Two cards on a shelf, the better one first: the one that shares more words with the question."""

    cards: tuple[str, ...] = (
        "The harbour office opens at nine and closes at noon.",
        "The night ferry to Skeldry is called the Grey Heron.",
    )

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        words = set(query.lower().strip("?").split())
        ranked = sorted(self.cards, key=lambda card: -len(words & set(card.lower().strip(".").split())))
        return [Document(card, metadata={"source": f"card {self.cards.index(card) + 1}"}) for card in ranked]


rag = EpicRAG.from_store("memory://", retriever=Shelf(), max_tokens=24)
chain = rag.pick("answer") | StrOutputParser()
question = "What is the night ferry to Skeldry called?"
print("answer:", chain.invoke(question))

usage = rag.invoke(question)["usage"]["input_token_details"]
print(f"asked again: {usage['cache_read']} tokens from the store, {usage['cache_creation']} encoded")
