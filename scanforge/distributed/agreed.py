"""The form that all ranks of a call find alike, from what they tell each other of its steps."""

from __future__ import annotations

from scanforge.declare import Declaration
from scanforge.distributed.forms import COMPOSE, FORMS, PASS, Cut, Form, form_plan
from scanforge.distributed.lanes import cuts_of, cuttable, load_of
from scanforge.distributed.ranks import Ranks
from scanforge.distributed.wire import compare, digest_of, specs
from scanforge.errors import ArgumentError
from scanforge.ir.scan import TIME, load
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
    axes, reason = cuttable(call)
    if options.lowering == "split" and call.packed is not None:
        reason, axes = "lowering='split' takes packed sequences one after another", []
    if forced == PASS and not axes:
        raise ArgumentError(f"{ranks.name}: form='pass' does not apply, since {reason}: leave form out.")
    if forced == COMPOSE or not axes:
        return Form(COMPOSE, "forced by form=" if forced else reason)
    off = "" if forced else _not_worth(call, options, ranks)
    if off:
        return Form(COMPOSE, off)
    steps = _steps(call, options, ranks, forced)
    cuts = cuts_of(call, options, max(steps))
    if not cuts:  # lanes are too few for whole lines of memory, and the form is forced
        cuts = cuts_of(call, options, max(steps), row=1) or [Cut(axes[0], (0, call.sizes[axes[0]]))]
    return form_plan(load_of(call, steps), cuts, forced=bool(forced))


def _not_worth(call: Prepared, options: Options, ranks: Ranks) -> str:
    """Why passing on does not pay for any number of steps; empty where it may."""
    if options.backend != "triton":
        return "the reference takes its time step by step, however few lanes a group has"
    cuts = cuts_of(call, options, ENDLESS)
    if not cuts:
        return f"lanes are too few for groups whose rows in memory have {LINE} bytes"
    if form_plan(load_of(call, [ENDLESS] * ranks.count), cuts).cut is None:
        return (
            "lanes are too few: a group would leave a device idle, or its kernels read their inputs twice too"
        )
    return ""


def _steps(call: Prepared, options: Options, ranks: Ranks, forced: str) -> list[int]:
    """The steps of all ranks, which have found that they make the same call."""
    inputs = [(i.dims, x.dtype) for i, x in zip(load(call.text).inputs, call.inputs, strict=True)]
    lanes = {a: n for a, n in call.sizes.items() if a != TIME}
    how = ranks.name, ranks.reverse, ranks.alike, forced, options.backend, options.lowering
    digest = digest_of((how, inputs, lanes, specs(call.initial)))
    found = ranks.gather_numbers([digest, call.sizes[TIME]], call.device)
    codes = [code for code, _ in found]
    compare(codes[::-1] if ranks.reverse else codes, digest, ranks)
    return [steps for _, steps in found]
