"""The sequential truth of every shipped operator, written by hand and independent of scanforge.

`loop` walks time (axis 1) one step after another in plain torch, so ordinary autograd differentiates it;
`prefix_loop` does the same for the composed elements. Neither casts: hand in float64 for a reference.
"""

from __future__ import annotations

import torch
from torch import Tensor

INF = float("inf")


def affine(h, *, a, b):
    return (a * h + b,)


def min_max(x, *, r, s):
    return (torch.maximum(torch.minimum(r, x), s),)


def running_max(top, at, *, value, index):
    wins = (value > top) | (value.isnan() & ~top.isnan())
    return torch.where(wins, value, top), torch.where(wins, index, at)


def log_sum_exp(top, total, *, m, s):
    peak = torch.maximum(m, top)
    shift = torch.where(peak == -INF, torch.zeros_like(peak), peak)
    return peak, total * torch.exp(top - shift) + s * torch.exp(m - shift)


def last_flagged(last, *, flag, value):
    return (torch.where(flag == 0, last, value),)


def complex_affine(h_re, h_im, *, a_re, a_im, b_re, b_im):
    h = torch.complex(a_re, a_im) * torch.complex(h_re, h_im) + torch.complex(b_re, b_im)
    return h.real, h.imag


def matrix_2x2(x0, x1, *, m00, m01, m10, m11):
    return m00 * x0 + m01 * x1, m10 * x0 + m11 * x1


def max_plus(x, *, a, b):
    return (torch.maximum(a + x, b),)


def kalman(mean, var, *, gain, offset, noise, eta, info):
    evidence = 1 + var * info
    return gain * (mean + var * eta) / evidence + offset, gain**2 * var / evidence + noise


STEPS = {
    "Affine": affine,
    "MinMax": min_max,
    "RunningMax": running_max,
    "LogSumExp": log_sum_exp,
    "LastFlagged": last_flagged,
    "ComplexAffine": complex_affine,
    "Matrix2x2": matrix_2x2,
    "MaxPlus": max_plus,
    "Kalman": kalman,
}

INITIAL = {
    "Affine": (0.0,),
    "MinMax": (0.0,),
    "RunningMax": (-INF, -1),
    "LogSumExp": (-INF, 0.0),
    "LastFlagged": (0.0,),
    "ComplexAffine": (0.0, 0.0),
    "Matrix2x2": (1.0, 0.0),
    "MaxPlus": (0.0,),
    "Kalman": (0.0, 1.0),
}

IDENTITY = {
    "Affine": {"a": 1.0, "b": 0.0},
    "MinMax": {"r": INF, "s": -INF},
    "RunningMax": {"value": -INF, "index": -1},
    "LogSumExp": {"m": -INF, "s": 0.0},
    "LastFlagged": {"flag": 0, "value": 0.0},
    "ComplexAffine": {"a_re": 1.0, "a_im": 0.0, "b_re": 0.0, "b_im": 0.0},
    "Matrix2x2": {"m00": 1.0, "m01": 0.0, "m10": 0.0, "m11": 1.0},
    "MaxPlus": {"a": 0.0, "b": -INF},
    "Kalman": {"gain": 1.0, "offset": 0.0, "noise": 0.0, "eta": 0.0, "info": 0.0},
}


def compose_affine(e, l):
    return {"a": l["a"] * e["a"], "b": l["a"] * e["b"] + l["b"]}


def compose_min_max(e, l):
    r, s = l["r"], l["s"]
    return {"r": torch.minimum(r, e["r"]), "s": torch.maximum(torch.minimum(r, e["s"]), s)}


def compose_running_max(e, l):
    value, index = running_max(e["value"], e["index"], **l)
    return {"value": value, "index": index}


def compose_log_sum_exp(e, l):
    m, s = log_sum_exp(e["m"], e["s"], **l)
    return {"m": m, "s": s}


def compose_last_flagged(e, l):
    return {name: torch.where(l["flag"] == 0, e[name], l[name]) for name in ("flag", "value")}


def compose_complex_affine(e, l):
    a_later, a_earlier = torch.complex(l["a_re"], l["a_im"]), torch.complex(e["a_re"], e["a_im"])
    a = a_later * a_earlier
    b = a_later * torch.complex(e["b_re"], e["b_im"]) + torch.complex(l["b_re"], l["b_im"])
    return {"a_re": a.real, "a_im": a.imag, "b_re": b.real, "b_im": b.imag}


def compose_matrix_2x2(e, l):
    return {
        f"m{i}{k}": l[f"m{i}0"] * e[f"m0{k}"] + l[f"m{i}1"] * e[f"m1{k}"] for i in range(2) for k in range(2)
    }


def compose_max_plus(e, l):
    return {"a": l["a"] + e["a"], "b": torch.maximum(l["a"] + e["b"], l["b"])}


def compose_kalman(e, l):
    evidence = 1 + e["noise"] * l["info"]
    return {
        "gain": l["gain"] * e["gain"] / evidence,
        "offset": l["gain"] * (e["offset"] + e["noise"] * l["eta"]) / evidence + l["offset"],
        "noise": l["gain"] ** 2 * e["noise"] / evidence + l["noise"],
        "eta": e["gain"] * (l["eta"] - l["info"] * e["offset"]) / evidence + e["eta"],
        "info": e["gain"] ** 2 * l["info"] / evidence + e["info"],
    }


COMPOSE = {
    "Affine": compose_affine,
    "MinMax": compose_min_max,
    "RunningMax": compose_running_max,
    "LogSumExp": compose_log_sum_exp,
    "LastFlagged": compose_last_flagged,
    "ComplexAffine": compose_complex_affine,
    "Matrix2x2": compose_matrix_2x2,
    "MaxPlus": compose_max_plus,
    "Kalman": compose_kalman,
}


def lanes(leaf: Tensor) -> torch.Size:
    """The shape of one step."""
    return leaf.shape[:1] + leaf.shape[2:]


def initial_states(name: str, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """The states that stand in when none is given, one for every lane of the broadcast leaves."""
    leaves = torch.broadcast_tensors(*tensors.values())
    shape = lanes(leaves[0])
    floats = [leaf.dtype for leaf in leaves if leaf.is_floating_point() or leaf.is_complex()]
    ints = [leaf.dtype for leaf in leaves if leaf.dtype not in floats]
    return tuple(
        torch.full(shape, value, dtype=(floats if isinstance(value, float) else ints)[0])
        for value in INITIAL[name]
    )


def steps(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """The leaves broadcast together, and the element of each step."""
    leaves = dict(zip(tensors, torch.broadcast_tensors(*tensors.values()), strict=True))
    columns = (x.unbind(1) for x in leaves.values())
    return leaves, [dict(zip(leaves, row, strict=True)) for row in zip(*columns, strict=True)]


def run(step, tensors: dict[str, Tensor], initial: tuple[Tensor, ...], reverse: bool = False):
    """Walk `step(*states, **leaves)` along axis 1: `(states, finals)`, each in the order of `initial`."""
    leaves, rows = steps(tensors)
    state = tuple(x.expand(lanes(next(iter(leaves.values())))) for x in initial)
    history = []
    for row in reversed(rows) if reverse else rows:
        state = step(*state, **row)
        history.append(state)
    if reverse:
        history.reverse()
    if not history:
        return tuple(x.unsqueeze(1)[:, :0] for x in state), state
    return tuple(torch.stack(column, 1) for column in zip(*history, strict=True)), state


def loop(
    name: str, tensors: dict[str, Tensor], initial: tuple[Tensor, ...] | None = None, reverse: bool = False
):
    """The states and final states of operator `name`, each a tuple in declared order."""
    return run(STEPS[name], tensors, initial or initial_states(name, tensors), reverse)


def prefix_loop(name: str, tensors: dict[str, Tensor], reverse: bool = False) -> dict[str, Tensor]:
    """The composed elements of steps 0..t of operator `name`: the scan of the operator on itself."""
    leaves, rows = steps(tensors)
    element = {leaf: torch.full(lanes(x), IDENTITY[name][leaf], dtype=x.dtype) for leaf, x in leaves.items()}
    history = []
    for row in reversed(rows) if reverse else rows:
        element = COMPOSE[name](element, row)
        history.append(element)
    if reverse:
        history.reverse()
    if not history:
        return leaves
    return {leaf: torch.stack([row[leaf] for row in history], 1) for leaf in leaves}
