"""The structure of the derived backward pass: what it reads, what it carries, what it leaves out."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from scanforge import laws
from scanforge.adjoint import Adjoint, adjoint, full_adjoint
from scanforge.facts import facts
from scanforge.ir.check import check_scan
from scanforge.ir.scan import Scan, dump, dump_operator, load
from scanforge.trace import Signature, prefix_scan, trace

OPERATORS = [getattr(sf.operators, name) for name in sf.operators.__all__]
every_operator = pytest.mark.parametrize("operator", OPERATORS, ids=lambda x: x.__name__)
FULL = ("b", "t", "d")


def scan(operator, **dims: tuple[str, ...]) -> Scan:
    """A bare operator's scan; `dims` of the leaves that broadcast."""
    names = operator.__scanforge__.tensor_names()
    return trace(operator, Signature(("t", "b", "d"), tuple(dims.get(n, FULL) for n in names))).scan


def derive(operator, wanted: str, cotangents: str | None = None, initial: bool = False, **dims) -> Adjoint:
    """The adjoint for some gradients, given some outputs' cotangents (all of them by default)."""
    primal = scan(operator, **dims)
    given = (
        {o.name for o in primal.outputs if o.kind == "float"}
        if cotangents is None
        else set(cotangents.split())
    )
    return adjoint(primal, frozenset(wanted.split()), frozenset(given), initial)


def inputs(derived: Adjoint) -> dict[str, str]:
    """The adjoint's inputs with their roles."""
    return {i.name: i.role for i in derived.scan.inputs}


def reads(derived: Adjoint) -> dict[str, set[str]]:
    """What each leaf of the element and each gradient reads."""
    return {
        n: set(x) for p in (derived.scan.element, derived.scan.readout) for n, x in p.dependencies().items()
    }


class ShiftRegister(sf.Operator):
    """Three states, each the one before it; the laws are of no interest here."""

    x = sf.Element(identity=0.0)
    s0, s1, s2 = sf.State(), sf.State(), sf.State()

    def combine(self, later):
        return later

    def apply(self, s0, s1, s2):
        return self.x, s0, s1


class Ignores(sf.Operator):
    """`h <- a h`, whatever b and the floor of c are."""

    a = sf.Element(identity=1.0)
    b = sf.Element(identity=0.0)
    c = sf.Element(identity=0.0)
    h = sf.State()

    def combine(self, later):
        return Ignores(a=later.a * self.a, b=later.b, c=later.c)

    def apply(self, h):
        return self.a * h + 0.0 * sf.floor(self.c)


class Forgets(sf.Operator):
    """`h <- b`, whatever h was."""

    b = sf.Element(identity=0.0)
    h = sf.State()

    def combine(self, later):
        return later

    def apply(self, h):
        return 1.0 * self.b


class Counter(sf.Operator):
    """No float at all."""

    step = sf.Element(identity=0, kind="int")
    count = sf.State(kind="int")

    def combine(self, later):
        return Counter(step=self.step + later.step)

    def apply(self, count):
        return count + self.step


class TestWhatItReads:
    def test_affine_reads_the_state_for_the_gate_alone(self):
        derived = full_adjoint(scan(sf.operators.Affine))
        assert inputs(derived) == {"a": "given", "previous_h": "state_before", "grad_h": "cotangent"}
        assert reads(derived) == {
            "a": {"a"},
            "b": {"a", "grad_h"},
            "grad_a": {"previous_h", "grad_h", "previous_mu_h"},
            "grad_b": {"grad_h", "previous_mu_h"},
        }
        assert dict(derived.gradients) == {"a": "grad_a", "b": "grad_b"}
        assert derived.states_before == (("h", "previous_h"),)
        assert derived.cotangents == (("h", "grad_h"),)
        assert derived.initial == (("h", "mu_h"),)

    def test_affine_facts(self):
        found = facts(scan(sf.operators.Affine))
        assert (found.affine, found.selects, found.state_in_element) == (True, False, False)
        assert found.state_in_gradients == ("grad_a",)

    def test_min_max_reads_the_state_in_its_element(self):
        derived = full_adjoint(scan(sf.operators.MinMax))
        assert reads(derived)["a"] == {"r", "s", "previous_x"}
        found = facts(scan(sf.operators.MinMax))
        assert (found.affine, found.selects, found.state_in_element) == (False, True, True)
        assert found.state_in_gradients == ("grad_r", "grad_s")

    def test_no_name_is_taken_twice(self):
        class Named(sf.Operator):
            """Leaves that bear the names that the adjoint would choose."""

            grad_h = sf.Element(identity=1.0)
            mu_h = sf.Element(identity=0.0)
            h = sf.State()

            def combine(self, later):
                return Named(grad_h=later.grad_h * self.grad_h, mu_h=later.grad_h * self.mu_h + later.mu_h)

            def apply(self, h):
                return self.grad_h * h + self.mu_h

        derived = full_adjoint(scan(Named))
        check_scan(full_adjoint(derived.scan).scan)
        names = [i.name for i in derived.scan.inputs] + [s.name for s in derived.scan.states]
        assert len(set(names)) == len(names)
        assert derived.cotangents == (("h", "grad_h_"),)
        assert derived.initial == (("h", "mu_h_"),)


class TestPruning:
    def test_only_the_summands_gradient(self):
        """No state before: it needs nothing but the gates and the cotangent."""
        derived = derive(sf.operators.Affine, "b")
        assert derived.states_before == ()
        assert inputs(derived) == {"a": "given", "grad_h": "cotangent"}
        assert dict(derived.gradients) == {"b": "grad_b"}

    def test_only_the_final_states_cotangent(self):
        derived = derive(sf.operators.Affine, "b", cotangents="")
        assert inputs(derived) == {"a": "given"}
        assert derived.cotangents == ()
        derived = derive(sf.operators.Affine, "a b", cotangents="")
        assert inputs(derived) == {"a": "given", "previous_h": "state_before"}

    def test_only_the_initial_states_gradient(self):
        derived = derive(sf.operators.Affine, "", initial=True)
        assert derived.gradients == ()
        assert derived.scan.outputs == ()
        assert derived.initial == (("h", "mu_h"),)
        assert "previous_h" not in inputs(derived)

    def test_only_the_states_cotangents_that_matter(self):
        """The gradient of the mean's offset needs the mean's cotangent, whose gate reads the variance."""
        derived = derive(sf.operators.Kalman, "offset")
        assert derived.initial == (("mean", "mu_mean"),)
        assert derived.states_before == (("var", "previous_var"),)
        assert set(inputs(derived)) == {"gain", "info", "previous_var", "grad_mean"}
        assert [leaf.name for leaf in derived.scan.operator.leaves] == ["a", "b"]

    def test_the_variance_hears_of_the_mean(self):
        assert derive(sf.operators.Kalman, "noise").initial == (("mean", "mu_mean"), ("var", "mu_var"))

    def test_a_recurrence_that_forgets_carries_nothing_unless_asked(self):
        derived = derive(Forgets, "b")
        assert derived.states_before == ()
        assert reads(derived)["grad_b"] <= {"grad_h", "previous_mu_h"}
        check_scan(derived.scan)


class TestPattern:
    def leaves(self, operator) -> set[str]:
        return {leaf.name for leaf in full_adjoint(scan(operator)).scan.operator.leaves}

    def test_kalman_is_two_by_two_with_one_zero(self):
        assert self.leaves(sf.operators.Kalman) == {
            "a_mu_mean_mu_mean", "b_mu_mean", "a_mu_var_mu_mean", "a_mu_var_mu_var", "b_mu_var",
        }  # fmt: skip
        assert facts(scan(sf.operators.Kalman)).couples == (("mean", ("mean",)), ("var", ("mean", "var")))

    def test_a_shift_register_closes_transitively(self):
        """mu_s0 reads mu_s1, which reads mu_s2: products of such matrices fill the upper half."""
        factors = {name for name in self.leaves(ShiftRegister) if name.startswith("a_")}
        upper = [("s0", "s0"), ("s0", "s1"), ("s0", "s2"), ("s1", "s1"), ("s1", "s2"), ("s2", "s2")]
        assert factors == {f"a_mu_{i}_mu_{j}" for i, j in upper}
        element = full_adjoint(scan(ShiftRegister)).scan.element
        numbers = element.constants()
        found = {n: numbers.get(v) for n, v in element.outputs if n in factors}
        ones = {"a_mu_s0_mu_s1", "a_mu_s1_mu_s2"}
        assert found == {n: 1.0 if n in ones else 0.0 for n in factors}

    @every_operator
    def test_it_is_an_affine_scan_whose_laws_are_proved(self, operator):
        made = full_adjoint(scan(operator)).scan.operator
        assert all(r.proved for r in laws.check_laws(dump_operator(made)))

    def test_ints_are_left_out(self):
        derived = full_adjoint(scan(sf.operators.RunningMax))
        assert derived.initial == (("top", "mu_top"),)
        assert dict(derived.gradients) == {"value": "grad_value"}
        assert derived.states_before == (("top", "previous_top"),)
        assert set(inputs(derived)) == {"value", "previous_top", "grad_top"}

    def test_without_floats_there_is_nothing_to_derive(self):
        derived = full_adjoint(scan(Counter))
        assert derived.gradients == derived.initial == derived.cotangents == ()
        assert derived.scan.states == ()


class TestGradients:
    def test_they_have_the_dims_of_their_inputs(self):
        derived = full_adjoint(scan(sf.operators.Affine, a=("1", "1", "d"), b=("1", "t", "1")))
        assert {o.name: o.dims for o in derived.scan.outputs} == {
            "grad_a": ("1", "1", "d"),
            "grad_b": ("1", "t", "1"),
        }
        assert {o.name: o.dtype for o in derived.scan.outputs} == {"grad_a": "a", "grad_b": "b"}

    def test_a_structural_zero_is_a_constant(self):
        readout = full_adjoint(scan(Ignores)).scan.readout
        numbers = readout.constants()
        assert {n: numbers.get(v) for n, v in readout.outputs} == {
            "grad_a": None,
            "grad_b": 0.0,
            "grad_c": 0.0,
        }

    @pytest.mark.parametrize("lowering", ["loop", "parallel"])
    def test_req11_structurally_zero_gradients_are_zeros(self, lowering):
        shapes = {"a": (2, 5, 3), "b": (1, 5, 1), "c": (2, 1, 3)}
        kinds = {"a": torch.float32, "b": torch.bfloat16, "c": torch.float64}
        tensors = {n: torch.ones(s, dtype=kinds[n], requires_grad=True) for n, s in shapes.items()}
        sf.scan(Ignores, **tensors, lowering=lowering).sum().backward()
        for name in "bc":
            grad = tensors[name].grad
            assert (grad.shape, grad.dtype) == (shapes[name], kinds[name])
            assert torch.equal(grad, torch.zeros_like(grad))

    @pytest.mark.parametrize("lowering", ["loop", "parallel"])
    def test_req11_an_apply_that_ignores_the_state(self, lowering):
        sf.set_law_check(False)  # no element can leave the state as it is
        try:
            b, h0 = torch.randn(2, 5, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
            out = sf.scan(Forgets, b=b, initial_state=h0, lowering=lowering)
            db, dh0 = torch.autograd.grad(out.sum(), (b, h0))
        finally:
            sf.set_law_check(True)
        assert torch.equal(out, b)
        assert torch.equal(db, torch.ones_like(b))
        assert torch.equal(dh0, torch.zeros(2, 3))


class TestHigherOrders:
    @every_operator
    def test_the_adjoint_of_the_adjoint_passes_the_checker(self, operator):
        primal = scan(operator)
        for start in (primal, prefix_scan(trace(operator, signature(operator))).scan):
            first = full_adjoint(start).scan
            second = full_adjoint(first).scan
            assert check_scan(second)
            assert load(dump(second)) == second

    def test_the_adjoint_is_affine_in_its_own_state(self):
        for operator in OPERATORS:
            assert facts(full_adjoint(scan(operator)).scan).affine

    def test_complex_leaves(self):
        pairs = Signature(("t", "b", "d"), (FULL,) * 2, complex_leaves=frozenset("ab"))
        first = full_adjoint(trace(sf.operators.Affine, pairs).scan)
        assert {n for n, _ in first.gradients} == {"a_re", "a_im", "b_re", "b_im"}
        check_scan(full_adjoint(first.scan).scan)


def signature(operator) -> Signature:
    return Signature(("t", "b", "d"), (FULL,) * len(operator.__scanforge__.leaves))
