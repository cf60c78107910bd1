"""check, explain and source of recurrences, from Python and from a shell."""

from __future__ import annotations

import inspect

import pytest
import torch

import scanforge as sf
from scanforge import cli, example, op, validate
from scanforge.facts import facts
from tests.broken import Half
from tests.recurrence_declarations import (
    HGRN2,
    RGLRU,
    Counted,
    Innovation,
    LinearAttention,
    Positional,
    Retention,
    RGLRUDocuments,
    SelectiveSSM,
    Summing,
)
from tests.recurrences import BY_NAME, ENTRIES, SIZES, draw
from tests.reference.compare import LOWERINGS
from tests.reference.fused import every_entry
from tests.subprocesses import ROOT
from tests.tolerances import assert_close

BF16 = torch.bfloat16


class TestCheck:
    @every_entry
    def test_right_recurrences(self, entry, capsys):
        report = sf.check(entry.recurrence, show=False)
        assert report.ok, str(report)
        assert report.operator == entry.name
        wanted = {
            f"{what}{cut}: {lowering}, {way}"
            for what in ("values", "gradients")
            for cut in ("", ", resets and padding")
            for lowering in LOWERINGS
            for way in ("left to right", "right to left")
        }
        assert wanted <= {row.subject for row in report.rows}
        assert capsys.readouterr().out == ""

    def test_sizes_and_shapes(self):
        assert sf.check(SelectiveSSM, show=False, t=5, n=1).ok
        assert sf.check(SelectiveSSM, {"u": (2, 3, 4, 5), "dt": (2, 3, 4, 5), "B": (2, 3, 4, 2),
                                       "C": (2, 3, 4, 2)}, show=False).ok  # fmt: skip

    def test_an_axis_of_the_state_alone(self):
        class Filters(sf.Recurrence):
            """As many filters as the initial state has"""

            x = sf.Input("b t d")
            h = sf.State("b d n")

            def element(self):
                return sf.Affine(a=0.5, b=self.x)

        assert sf.check(Filters, show=False, n=3).ok
        assert "state   h: float[b d n]" in sf.explain(Filters)

    def test_a_broken_operator_in_the_element(self):
        class Halves(sf.Recurrence):
            x = sf.Input("b t d")
            h, g = sf.State("b d"), sf.State("b d")

            def element(self):
                return sf.Affine(a=0.5, b=self.x), Half(x=self.x)

        report = sf.check(Halves, show=False)
        wrong = {row.subject for row in report.rows if not row.ok}
        assert wrong == {f"law: {law} of Half" for law in (
            "associativity", "action", "identity", "two-sided identity")}  # fmt: skip
        assert "law: action of Affine" in {row.subject for row in report.rows}

    @pytest.mark.parametrize("spoilt", ["reverse", "cut"])
    def test_wrong_numbers_are_reported(self, monkeypatch, spoilt):
        """In one direction, or in the last of the inputs that resets and padding add."""
        original = op.apply

        def spoiled(text, inputs, initial, options, bounds=None):
            wrong = options.reverse if spoilt == "reverse" else len(inputs) > 4
            wrong &= ".adjoint" not in text
            wrong &= ".adjoint" not in text
            outputs, finals = original(text, inputs, initial, options)
            return ([y * (1 + 1e-6) for y in outputs] if wrong else outputs), finals

        monkeypatch.setattr(validate.op, "apply", spoiled)
        wrong = {row.subject for row in sf.check(RGLRU, show=False).rows if not row.ok}
        part = "right to left" if spoilt == "reverse" else ", resets and padding"
        assert wrong
        assert all(part in subject for subject in wrong)


class TestExplain:
    @every_entry
    @pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=str)
    def test_every_recurrence(self, entry, dtype):
        text = sf.explain(entry.recurrence, dtype=dtype)
        assert text.startswith(f"{entry.name}: ")
        titles = ["element", "step", "readout", "combine", "laws", "facts"]
        places = [text.index(f"\n\n{title}\n") for title in titles]
        assert places == sorted(places)
        for name in entry.inputs:
            assert f"  input   {name}: " in text
        for name, tensor in draw(entry, torch.float32)[0].items():
            assert (f"grad_{name} " in text) == tensor.is_floating_point()

    def test_the_selective_ssm(self):
        text = sf.explain(SelectiveSSM, b=8, t=2048, d=2048, n=16, dtype="bf16")
        for piece in (
            "input   A: float[d n]",
            "state   h: float[b d n], initial 0.0",
            "output  y: float[b t d]",
            "a = exp(dt * A)",
            "y = sum(C * h', 'n') + D * u",
            "action: proved",
            "affine in the state",
            "the outputs contract n: the state is expanded along it",
            "b is an outer product of factors over (n) and (d)",
            "grad_A (summed over t b) = ",
            "plan for b=8, t=2048, d=2048, n=16 in bfloat16",
            "computed and carried in float32",
        ):
            assert piece in text

    def test_what_is_read_before_the_step(self):
        text = sf.explain(Innovation)
        assert "y = (x - level) * level'" in text
        assert "an output reads level before the step" in text
        assert "before the step\n" not in sf.explain(RGLRU).split("facts")[1].split("backward")[0].replace(
            "the state before the step is read", ""
        )

    def test_outputs_that_sum(self):
        text = sf.explain(Summing)
        assert "output  work: float[b t], summed over d" in text
        assert "output  energy: float[d], summed over t b" in text

    def test_two_operators(self):
        text = sf.explain(LinearAttention)
        assert text.count("proved") == 4, "the same operator twice is one"
        assert "z' = " in text

    def test_shapes(self):
        text = sf.explain(HGRN2, {"q": (2, 7, 3, 5), "f": (2, 7, 3, 5), "v": (2, 7, 3, 4)})
        assert "plan for b=2, t=7, h=3, k=5, v=4" in text
        assert "plan for b2=2, b=3, t=7, d=4" in sf.explain(
            RGLRU, {"x": (2, 3, 7, 4), "r": (2, 3, 7, 4), "i": (2, 3, 7, 4)}
        )

    @pytest.mark.parametrize(
        ("arguments", "error", "parts"),
        [
            ({"shapes": {"w": (1, 2, 3)}}, sf.ArgumentError, ["RGLRU has no input w", "x, r, i, Lambda"]),
            ({"n": 4}, sf.ArgumentError, ["RGLRU has no axis n", "t, b, d", "d=8"]),
            ({"d": -1}, sf.ArgumentError, ["d=-1 is no size"]),
            ({"shapes": {"x": (1, 2, 3), "r": (1, 4, 3)}}, sf.ShapeError, ["axis t", "(1, 4, 3)"]),
            ({"dtype": "bf17"}, sf.ArgumentError, ["RGLRU", "bf16"]),
        ],
    )
    def test_what_does_not_fit(self, arguments, error, parts):
        with pytest.raises(error) as caught:
            sf.explain(RGLRU, arguments.pop("shapes", None), **arguments)
        for part in parts:
            assert part in str(caught.value)


class TestFacts:
    def of(self, recurrence):
        return facts(example.example(recurrence, None, {}, example.SMALL).traced.scan)

    @pytest.mark.parametrize(
        ("recurrence", "expanded", "outer"),
        [
            (RGLRU, (), ()),
            (SelectiveSSM, ("n",), (("n",), ("d",))),
            (HGRN2, ("k",), (("k",), ("v",))),
            (Retention, ("k",), (("k",), ("v",))),
            (Positional, (), ()),
        ],
    )
    def test_axes(self, recurrence, expanded, outer):
        found = self.of(recurrence)
        assert found.expanded == expanded
        assert {frozenset(x) for x in dict(found.outer).get("b", ())} == {frozenset(x) for x in outer}
        assert found.affine

    def test_operators_that_select(self):
        found = self.of(BY_NAME["GatedMinMax"].recurrence)
        assert found.selects
        assert not found.affine
        assert found.state_in_element

    def test_inputs_without_gradient(self):
        assert set(self.of(Counted).state_in_gradients) == {"grad_f"}


class TestSource:
    @every_entry
    @pytest.mark.parametrize("lowering", LOWERINGS)
    @pytest.mark.parametrize("reverse", [False, True])
    def test_forward_alone_gives_the_final_states(self, entry, lowering, reverse):
        """The module takes tensors with all axes in order, size 1 for one that is lacking."""
        names: dict = {}
        exec(sf.source(entry.recurrence, lowering=lowering), names)
        tensors, initial = draw(entry)
        _, finals = sf.scan(
            entry.recurrence, **tensors, initial_state=initial, reverse=reverse, return_final_state=True
        )
        doc = names["__doc__"]
        axes = doc[doc.index("(") + 1 : doc.index(")")].split(", ")

        def whole(x, own):
            order = [own.index(a) for a in axes if a in own]
            return x.permute(order)[tuple(slice(None) if a in own else None for a in axes)]

        given = {n: whole(x, entry.inputs[n].axes.split()) for n, x in tensors.items()}
        given |= {
            f"initial_{n}": whole(x[None], ["t", *part.axes.split()])[0]
            for (n, part), x in zip(entry.states.items(), initial, strict=True)
        }
        steps, batch = SIZES["t"], SIZES["b"]
        start = torch.zeros(steps, batch, *[1] * (len(axes) - 2), dtype=torch.bool)
        start[-1 if reverse else 0] = True
        given["segment_start"] = start
        wanted = [n for n in inspect.signature(names["run"]).parameters if n not in {"steps", "reverse"}]
        _, ends, _ = names["run"](*(given[n] for n in wanted), steps=steps, reverse=reverse)
        for x, y in zip(ends, finals if isinstance(finals, tuple) else (finals,), strict=True):
            assert_close(x.reshape(y.shape), y, "long")

    def test_it_reads_as_a_person_writes(self):
        text = sf.source(SelectiveSSM)
        assert "return torch.exp(dt * A), dt * B * u" in text
        assert "torch.sum(C * h, dim=(3,), keepdim=True) + D * u" in text

    def test_backward(self):
        assert "grad_y" in sf.source(RGLRUDocuments, "backward")


class TestShell:
    @pytest.fixture
    def shell(self, monkeypatch, capsys):
        monkeypatch.chdir(ROOT)

        def run(*words: str) -> tuple[int, str, str]:
            monkeypatch.setattr("sys.argv", ["scanforge", *words])
            with pytest.raises(SystemExit) as done:
                cli.main()
            shown = capsys.readouterr()
            return int(done.value.code or 0), shown.out, shown.err

        return run

    MODULE = "tests.recurrence_declarations:SelectiveSSM"

    def test_commands(self, shell):
        code, out, _ = shell("check", self.MODULE, "t=9")
        assert (code, "SelectiveSSM: ok" in out) == (0, True)
        words = ["b=8", "t=2048", "d=2048", "n=16", "--dtype", "bf16"]
        code, out, _ = shell("explain", self.MODULE, *words)
        assert (code, "plan for b=8, t=2048, d=2048, n=16 in bfloat16" in out) == (0, True)
        code, out, _ = shell("source", self.MODULE, "backward", *words)
        assert (code, "def run(" in out) == (0, True)

    def test_an_axis_that_is_not_there(self, shell):
        code, out, err = shell("explain", self.MODULE, "k=3")
        assert (code, out) == (2, "")
        assert "SelectiveSSM has no axis k: its axes are t, b, d, n" in err


def test_the_catalogue_is_walked():
    assert len(ENTRIES) == len(BY_NAME)
