"""The language model: the only folder that touches transformers.

`load.py` finds and loads it, `gate.py` says whether it can be linked, `self_test.py` proves it, `fingerprint.py` names
its weights, `rope.py` and `forward.py` run chosen rows over a KV cache, `tokens.py` turns text into token ids and back.
"""

from epic_rag.model.language_model import LanguageModel
from epic_rag.model.load import load_model

__all__ = ["LanguageModel", "load_model"]
