"""The form that all ranks of a call find alike, from what they tell each other of its steps."""

from __future__ import annotations

from functools import lru_cache

from scanforge.declare import Declaration
from scanforge.distributed.forms import COMPOSE, FORMS, PASS, Cut, Form, form_plan
from scanforge.distributed.lanes import Asked, cuts_of, cuttable, load_of
from scanforge.distributed.ranks import Ranks
from scanforge.distributed.wire import compare, digest_of, specs
from scanforge.errors import ArgumentError
from scanforge.ir.scan import TIME
from scanforge.launch import Options
from scanforge.prepared import Prepared
from scanforge.recurrence import Fused
from scanforge.shipped import LINE

ENDLESS = 2**40  # steps: what does not pay for them pays for none


def form_option(declared: Declaration | Fused, form: object) -> str:
    """What goes into a call: the form that is forced, if one is."""
    if form not in {None, *FORMS}:
        raise ArgumentError(
            f"{declared.name}: form={form!r} is no choice: write form='compose' or form='pass', or leave it "
            "out."
        )
    return str(form or "")


def agreed(call: Prepared, options: Options, ranks: Ranks, forced: str) -> Form:
    """The form of a call. Ranks tell each other their steps where it depends on them."""
    asked = Asked.of(call, options)
    axes, reason = cuttable(asked)
    if forced == PASS and not axes:
        raise ArgumentError(f"{ranks.name}: form='pass' does not apply, since {reason}: leave form out.")
    if forced == COMPOSE or not axes:
        return Form(COMPOSE, "forced by form=" if forced else reason)
    off = "" if forced else not_worth(asked)
    return Form(COMPOSE, off) if off else _exchanged(call, asked, ranks, forced)


@lru_cache(maxsize=1024)
def not_worth(asked: Asked) -> str:
    """Why passing on does not pay for any number of steps; empty where it may."""
    if asked.options.backend != "triton":
        return "the reference takes its time step by step, however few lanes a group has"
    cuts = cuts_of(asked, ENDLESS)
    if not cuts:
        return f"lanes are too few for groups whose rows in memory have {LINE} bytes"
    if all(cut.twice or cut.idle for cut in cuts):
        return "lanes are too few: a group would leave a device idle, or its kernels read inputs twice, too"
    return ""


@lru_cache(maxsize=1024)
def form_of(asked: Asked, steps: tuple[int, ...], forced: str) -> Form:
    """The form of a call whose lanes can be cut, on ranks of so many steps."""
    cuts = cuts_of(asked, max(steps))
    if not cuts:  # lanes are too few for whole lines of memory, and the form is forced
        axis = cuttable(asked)[0][0]
        cuts = cuts_of(asked, max(steps), row=1) or [Cut(axis, (0, dict(asked.lanes)[axis]))]
    return form_plan(load_of(asked, steps), cuts, forced=bool(forced))


def _exchanged(call: Prepared, asked: Asked, ranks: Ranks, forced: str) -> Form:
    """The form that ranks choose which have found that they make the same call, by the steps of all."""
    own = asked.lanes, asked.inputs, asked.options, asked.sequences
    digest = digest_of((ranks.name, ranks.alike, forced, own, specs(call.initial)))
    rows = ranks.gather_numbers([digest, digest_of(asked.text), call.sizes[TIME]], call.device)
    digests, texts, steps = zip(*rows, strict=True)
    compare(digests[::-1] if ranks.reverse else digests, digest, ranks)
    form = form_of(asked, steps, forced)
    if len({*texts}) == 1:
        return form
    # a tensor of one entry over all time looks like one over time on a rank of one step: the longest knows
    lanes = [*dict(asked.lanes)]
    mine = [lanes.index(form.cut.axis), form.cut.bounds[1]] if form.cut else [-1, 0]
    at, width = ranks.gather_numbers(mine, call.device)[steps.index(max(steps))]
    if at < 0:
        return Form(COMPOSE, "as the rank with the most steps finds")
    size = dict(asked.lanes)[lanes[at]]
    cut = Cut(lanes[at], (*range(0, size, width), size))
    return Form(PASS, f"as the rank with the most steps finds, in {cut}", cut)
