"""The README's tables about KV budgets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def budget_ppl_table(result: dict[str, Any]) -> str:
    """What a budget costs in perplexity."""
    table, settings = result["table"], result["settings"]
    lines = _by_share(table, lambda row: f"{row['over_full']:.3f} +- {row['over_full_standard_error']:.3f}")
    where = (
        "Loss above that with everything kept, in nats a token, by the share of a text's "
        f"{settings['tokens']:,} tokens that stays: SmolLM2-135M, {settings['dtype']}, {len(settings['texts'])} texts "
        f"of Python's documentation, stride {settings['stride']}; with everything kept the perplexity is "
        f"{table['full']['perplexity']:.2f} ([budget_ppl.json](benchmarks/results/budget_ppl.json))."
    )
    return "\n".join([*lines, "", where])


def budget_qa_table(result: dict[str, Any]) -> str:
    """What a budget costs in linked answers."""
    table, settings, full = result["table"], result["settings"], result["table"]["full"]
    lines = _by_share(table, lambda row: f"{row['kl']:.2f} +- {row['kl_standard_error']:.2f}; {row['f1']:.2f}")
    where = (
        "KL to a full prefill over the gold answer, and F1 of greedy answers, by the share of the prompt that stays: "
        f"{settings['questions']} questions of XQuAD, 8 paragraphs, {settings['encoding']}, {settings['selector']}. "
        f"With everything kept: {full['kl']:.2f} +- {full['kl_standard_error']:.2f}; {full['f1']:.2f} +- "
        f"{full['f1_standard_error']:.2f} ([budget_qa.json](benchmarks/results/budget_qa.json))."
    )
    return "\n".join([*lines, "", where])


def budget_table(result: dict[str, Any]) -> str:
    """What a budget saves: memory and seconds."""
    steps, evicting, memory = (result[name]["rows"] for name in ("decode", "evict", "memory"))
    lines = ["| slots of a prompt of 8,000 | process grows by | by arithmetic |", "|---|---|---|"]
    for share, row in memory.items():
        size = f"{row['grown_bytes'] / 1e6:.0f} MB | {row['expected_bytes'] / 1e6:.0f} MB"
        lines.append(f"| {row['slots']} ({share.replace('.0%', '%')}) | {size} |")
    one_time = max(row["one_time_bytes"] for row in memory.values())
    short, roco, full = (steps[name] for name in ("1024 tokens, full", "8000 tokens, roco 1024", "8000 tokens, full"))
    row = evicting["lego:4, roco"]
    where = (
        f"Beside that, up to {one_time / 1e6:.0f} MB stay from the first such prompt of a process, mostly code that "
        f"oneDNN compiles for each shape. Decoding at 8,000 tokens takes {full['median'] * 1e3:.0f} ms a token with "
        f"everything kept and {roco['median'] * 1e3:.0f} ms under a budget of 1,024 with `roco`; at 1,024 tokens "
        f"{short['median'] * 1e3:.0f} ms. Evicting a linked prompt of 4,096 tokens to a quarter takes "
        f"{row['evict_seconds'] * 1e3:.0f} ms, {row['evict_share']:.1%} of linking with `lego:4`; gathering scores "
        f"meanwhile adds {row['scores_share']:.0%}, and giving the memory back adds "
        f"{row['first_slot_seconds'] * 1e3:.0f} ms to the second token ([budget.json](benchmarks/results/budget.json))."
    )
    return "\n".join([*lines, "", where])


def statistics_table(result: dict[str, Any]) -> str:
    """What statistics cost at ingest."""
    rows = {row["prefix_tokens"]: row for row in result["ingest"]}
    warm, isolated = rows[600], rows[0]
    return (
        f"Statistics stored at ingest (`--statistics`) add {warm['more_seconds']:.0%} to the seconds of encoding a "
        f"chunk behind a warm prefix, {isolated['more_seconds']:.0%} behind none, and {warm['more_bytes']:.1%} to its "
        "bytes ([statistics.json](benchmarks/results/statistics.json))."
    )


def _by_share(table: dict[str, Any], cell: Callable[[dict[str, float]], str]) -> list[str]:
    """One line a policy, one column a share; rows are named `policy share`."""
    names = [name.rsplit(" ", 1) for name in table if name != "full"]
    policies, shares = (list(dict.fromkeys(parts)) for parts in zip(*names, strict=True))
    head = [f"| policy | {' | '.join(share.replace('.0%', '%') for share in shares)} |", f"|---{'|---' * len(shares)}|"]
    rows = [" | ".join(cell(table[f"{policy} {share}"]) for share in shares) for policy in policies]
    return [*head, *(f"| `{policy}` | {row} |" for policy, row in zip(policies, rows, strict=True))]
