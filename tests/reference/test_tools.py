"""check, explain and source, from Python and from a shell."""

from __future__ import annotations

import ast
import inspect
import re

import pytest
import torch
from torch import Tensor

import scanforge as sf
from tests.broken import Half
from tests.catalogue import CASES, draw
from tests.reference.compare import LOWERINGS, many
from tests.tolerances import assert_close

every_operator = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_lowering = pytest.mark.parametrize("lowering", LOWERINGS)
both_ways = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


class Machine(sf.Operator):
    """Bools and ints, and no gradient anywhere."""

    flip = sf.Element(identity=False, kind="bool")
    step = sf.Element(identity=0, kind="int")
    on = sf.State(initial=False, kind="bool")
    count = sf.State(kind="int")

    def combine(self, later):
        return Machine(flip=self.flip ^ later.flip, step=self.step + later.step)

    def apply(self, on, count):
        return on ^ self.flip, count + self.step


class Level(sf.Operator):
    """A positive gain, which the samples respect, and a constant."""

    gain = sf.Element(identity=1.0, domain="positive")
    level = sf.State(initial=1.0)

    def combine(self, later):
        return Level(gain=sf.exp(sf.log(self.gain) + sf.log(later.gain)))

    def apply(self, level):
        return self.gain * level


class TestCheck:
    @pytest.mark.parametrize(
        "operator", [*(case.operator for case in CASES), Machine, Level], ids=lambda x: x.__name__
    )
    def test_right_operators(self, operator, capsys):
        report = sf.check(operator, show=False)
        assert report.ok
        assert report.operator == operator.__name__
        subjects = [row.subject for row in report.rows]
        assert subjects[:4] == [
            f"law: {law}" for law in ("associativity", "action", "identity", "two-sided identity")
        ]
        assert {f"{what}: {low}, {way}" for what in ("values", "gradients") for low in LOWERINGS
                for way in ("left to right", "right to left")} <= set(subjects)  # fmt: skip
        assert capsys.readouterr().out == ""

    def test_it_prints_a_table(self, capsys):
        assert sf.check(sf.operators.Affine).ok
        shown = capsys.readouterr().out
        for piece in ("Affine: ok", "law: associativity", "proved", "gradients: parallel, right to left"):
            assert piece in shown

    def test_a_broken_operator_is_reported_and_not_raised(self, capsys):
        report = sf.check(Half)
        assert not report.ok
        wrong = {row.subject for row in report.rows if not row.ok}
        assert wrong == {"law: associativity", "law: action", "law: identity", "law: two-sided identity"}
        assert "broken for a.x = " in next(row.result for row in report.rows)
        action = next(row.result for row in report.rows if row.subject == "law: action")
        sides = r"e\.combine\(l\) gives h = \S+, l after e gives h = \S+\."
        assert re.fullmatch(rf"broken for e.x = \S+, l.x = \S+, h = \S+: {sides}", action)
        assert str(report).startswith("Half: WRONG")
        assert "WRONG" in capsys.readouterr().out

    def test_wrong_numbers_are_reported(self, monkeypatch):
        """A lowering that is off by a little shows in its rows alone."""
        from scanforge import op, validate

        original = op.apply

        def spoiled(text, inputs, initial, options, bounds=None):
            outputs, finals = original(text, inputs, initial, options)
            return ([y * (1 + 1e-6) for y in outputs] if options.lowering == "parallel" else outputs), finals

        monkeypatch.setattr(validate.op, "apply", spoiled)
        report = sf.check(sf.operators.Affine, show=False)
        assert not report.ok
        assert {row.subject.split(":")[1].split(",")[0] for row in report.rows if not row.ok} == {" parallel"}

    @pytest.mark.parametrize("sizes", [{"t": 1}, {"t": 70, "d": 1}, {"b": 1, "d2": 2}])
    def test_other_sizes(self, sizes):
        assert sf.check(sf.operators.MinMax, show=False, **sizes).ok

    @pytest.mark.parametrize("sizes", [{"d": -1}, {"t": 1.5}])
    def test_sizes_that_are_none(self, sizes):
        with pytest.raises(sf.ArgumentError, match=r"MinMax: .* is no size of an axis: write"):
            sf.check(sf.operators.MinMax, show=False, **sizes)


class TestExplain:
    def test_min_max(self):
        text = sf.explain(sf.operators.MinMax, b=8, t=512, d=64)
        for piece in (
            "element r: float, identity inf",
            "x' = maximum(minimum(r, x), s)",
            "action: proved",
            "not affine in the state",
            "only selects",
            "mu_x",
            "plan for b=8, t=512, d=64 in float32",
            "bytes",
        ):
            assert piece in text

    def test_affine(self):
        text = sf.explain(sf.operators.Affine)
        assert "affine in the state" in text
        assert "the state before the step is read by grad_a" in text
        assert "operators.py:" in text

    def test_sizes_and_dtype_move_the_plan(self):
        few, many_lanes = (
            sf.explain(sf.operators.Affine, b=1, t=4096, d=1),
            sf.explain(sf.operators.Affine, t=4),
        )
        assert "parallel" in few.split("plan for")[1]
        assert "loop" in many_lanes.split("plan for")[1]
        assert "stored in float32" in sf.explain(sf.operators.Affine, dtype=torch.bfloat16)

    def test_shapes(self):
        text = sf.explain(sf.operators.Affine, {"a": (1, 1, 64), "b": (8, 512, 64)})
        assert "plan for b=8, t=512, d=64" in text
        with pytest.raises(sf.ArgumentError, match=r"Affine has no element c"):
            sf.explain(sf.operators.Affine, {"c": (1, 2, 3)})

    @pytest.mark.parametrize("operator", [Half, Machine, Level])
    def test_any_operator_can_be_explained(self, operator):
        assert sf.explain(operator).startswith(operator.__name__)
        assert ("action: broken" in sf.explain(operator)) == (operator is Half)


def generated(operator, which: str, lowering: str):
    """The `run` function of the generated module, which imports nothing but torch."""
    text = sf.source(operator, which, lowering=lowering)
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {getattr(node, "module", None) or node.names[0].name for node in imports} == {"torch"}
    names: dict = {}
    exec(text, names)
    return names["run"]


def one_or_tuple(initial: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    """As scan takes them."""
    return initial if len(initial) > 1 else initial[0]


def time_first(x: Tensor) -> Tensor:
    return x.transpose(0, 1)


class TestSource:
    @every_operator
    @every_lowering
    @both_ways
    def test_forward_alone_gives_the_numbers_of_scan(self, case, lowering, reverse):
        leaves, initial = draw(case, (2, 9, 3))
        run = generated(case.operator, "forward", lowering)
        outputs, finals, _ = run(*map(time_first, leaves.values()), *initial, steps=9, reverse=reverse)
        options = {"reverse": reverse, "lowering": lowering, "return_final_state": True}
        states, last = sf.scan(case.operator, **leaves, initial_state=one_or_tuple(initial), **options)
        for x, y in zip((*map(time_first, outputs), *finals), (*many(states), *many(last)), strict=True):
            assert torch.equal(x, y)

    @every_operator
    @every_lowering
    @both_ways
    def test_backward_alone_gives_its_gradients(self, case, lowering, reverse):
        """From the inputs, the states before each step and the cotangents, run the other way."""
        leaves, initial = draw(case, (2, 9, 3))
        wanted = [leaves[n].requires_grad_() for n in case.float_leaves]
        starts = [x.requires_grad_() for x in initial if x.is_floating_point()]
        states = many(sf.scan(case.operator, **leaves, initial_state=one_or_tuple(initial), reverse=reverse))
        random = torch.Generator().manual_seed(1)
        cotangents = [
            torch.randn(x.shape, generator=random, dtype=x.dtype) for x in case.float_outputs(states)
        ]
        truth = torch.autograd.grad(case.float_outputs(states), [*wanted, *starts], cotangents)

        given = {n: time_first(x.detach()) for n, x in leaves.items()}
        for name, x, x0 in zip(case.states, states, initial, strict=True):
            after, first = time_first(x.detach()), x0.detach()[None]
            given[f"previous_{name}"] = torch.cat((after[1:], first) if reverse else (first, after[:-1]))
        for name, c in zip(case.float_states, cotangents, strict=True):
            given |= {f"grad_{name}": time_first(c), f"initial_mu_{name}": torch.zeros_like(c[:, 0])}
        run = generated(case.operator, "backward", lowering)
        names = [n for n in inspect.signature(run).parameters if n not in {"steps", "reverse"}]
        gradients, ends, _ = run(*(given[n] for n in names), steps=9, reverse=not reverse)
        found = [*(time_first(g.expand(9, 2, 3)) for g in gradients), *ends]
        for what, x, y in zip((*case.float_leaves, *case.float_states), found, truth, strict=True):
            assert_close(x, y, "gradient", what)

    def test_it_reads_as_a_person_writes(self):
        text = sf.source(sf.operators.MinMax)
        assert "torch.maximum(torch.minimum(r, x), s)" in text
        assert text.startswith('"""MinMax, one step at a time.')
        assert "def combine" not in text
        assert "def combine" in sf.source(sf.operators.MinMax, lowering="parallel")

    def test_the_forward_pass_is_the_default(self):
        assert sf.source(sf.operators.Kalman) == sf.source(sf.operators.Kalman, "forward", lowering="loop")

    @pytest.mark.parametrize(("which", "options"), [("sideways", {}), ("forward", {"lowering": "tile"})])
    def test_what_is_not_generated(self, which, options):
        with pytest.raises(sf.ArgumentError, match="write"):
            sf.source(sf.operators.Affine, which, **options)

    @pytest.mark.parametrize("which", ["forward", "backward"])
    @pytest.mark.parametrize(("name", "dtype"), [("Affine", "fp64"), ("LastFlagged", "fp32")])
    def test_a_ring_that_no_call_has(self, which, name, dtype):
        """It is refused as by `sf.scan`, not shown as another lowering."""
        operator = getattr(sf.operators, name)
        with pytest.raises(sf.ArgumentError, match="lowering='ring' does not apply"):
            sf.source(operator, which, backend="triton", lowering="ring", dtype=dtype)

    def test_python_keywords_and_torch_as_names(self):
        """A field may bear the name of what the generated module uses."""

        class Odd(sf.Operator):
            torch = sf.Element(identity=1.0)
            inf = sf.Element(identity=0.0)
            steps = sf.State()

            def combine(self, later):
                return Odd(torch=later.torch * self.torch, inf=later.torch * self.inf + later.inf)

            def apply(self, steps):
                return self.torch * steps + self.inf

        a, b = torch.rand(2, 5, 3), torch.randn(2, 5, 3)
        for lowering in LOWERINGS:
            mine = sf.scan(Odd, torch=a, inf=b, lowering=lowering)
            assert torch.equal(mine, sf.scan(sf.operators.Affine, a=a, b=b, lowering=lowering))
