"""The README's table about KV budgets."""

from __future__ import annotations

from typing import Any


def budget_table(result: dict[str, Any]) -> str:
    """What a budget saves: memory and seconds."""
    steps, evicting, memory = (result["results"][name] for name in ("decode", "evict", "memory"))
    lines = ["| slots of a prompt of 8,000 | process grows by | by arithmetic |", "|---|---|---|"]
    for share, row in memory.items():
        size = f"{row['grown_bytes'] / 1e6:.0f} MB | {row['expected_bytes'] / 1e6:.0f} MB"
        lines.append(f"| {row['slots']} ({share.replace('.0%', '%')}) | {size} |")
    short, roco, full = (steps[name] for name in ("1024 tokens, full", "8000 tokens, roco 1024", "8000 tokens, full"))
    row = evicting["lego:4, roco"]
    where = (
        f"Decoding at 8,000 tokens takes {full['median'] * 1e3:.0f} ms a token with everything kept and "
        f"{roco['median'] * 1e3:.0f} ms under a budget of 1,024 with `roco`; at 1,024 tokens "
        f"{short['median'] * 1e3:.0f} ms. Evicting a linked prompt of 4,096 tokens to a quarter takes "
        f"{row['evict_seconds'] * 1e3:.0f} ms, {row['evict_share']:.1%} of linking with `lego:4`; gathering scores "
        f"meanwhile adds {row['scores_share']:.0%} ([budget.json](benchmarks/results/budget.json))."
    )
    return "\n".join([*lines, "", where])
