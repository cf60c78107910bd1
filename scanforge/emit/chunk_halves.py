"""Products of the decays of a chunk, half by half: exact for any decays, 0 and negative ones too."""

from __future__ import annotations

from scanforge.chunked_form import MatrixForm


def halves(level: str = "level") -> list[str]:
    """Of one level: which rows are in the upper halves, and the last rows of halves."""
    return [
        f"size = 1 << {level}",
        "upper = (i // size) % 2 == 1",
        "pairs = (i // (2 * size) == j // (2 * size)) & ((i // size) % 2 == 0) & ((j // size) % 2 == 1)",
        "low_end = tl.broadcast_to(i // (2 * size) * (2 * size) + size - 1, [C, KB])",
        "below = tl.gather(up, low_end, 0)",
        "above = tl.gather(up, low_end + size, 0)",
    ]


PRODUCTS = [
    "up = decay + tl.zeros([C, KB], FLOAT)  # of its half until its step; `past` without it",
    "past = tl.full([C, KB], 1.0, FLOAT)",
    "down = tl.full([C, KB], 1.0, FLOAT)  # of its half after its step",
]
WHOLE = [  # two halves become one
    "down = tl.where(upper, down, down * above)",
    "past = tl.where(upper, past * below, past)",
    "up = tl.where(upper, up * below, up)",
]


def decays(form: MatrixForm) -> list[str]:
    """The decays as they are multiplied: 0 at resets."""
    whole = ["decay = tl.exp2(log2_decay)"] * form.log_decay
    return whole + ["decay = tl.where(reset, 0.0, decay)"] * form.resets
