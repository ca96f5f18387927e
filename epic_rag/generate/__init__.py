"""Long prompts under a KV budget: prefill in chunks, evict after each, and answer in a cache of constant size.

`options.py` says how, `bounds.py` computes the sizes of each mode, `bounded.py` holds the KV within them, `compat.py`
holds it as EasyKV does, and `run.py` is the path from a prompt to its answer.
"""

from epic_rag.generate.options import GenerateOptions
from epic_rag.generate.run import GenerateReport, Generation, generate

__all__ = ["GenerateOptions", "GenerateReport", "Generation", "generate"]
