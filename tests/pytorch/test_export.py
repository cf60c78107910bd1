"""torch.export keeps one node for each scan, with a dynamic length; it saves, reloads and runs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils._pytree import tree_leaves

import scanforge as sf
import scanforge.ops
from tests import recurrences
from tests.catalogue import generator
from tests.subprocesses import run_warm
from tests.tolerances import assert_close

Decay, SelectiveSSM = recurrences.declared.Decay, recurrences.declared.SelectiveSSM


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed))


class Layer(nn.Module):
    """A layer around `function(x, w)`."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.w = function, nn.Parameter(torch.rand(3, generator=generator(1)))

    def forward(self, x: Tensor):
        return self.function(x, self.w)


LAYERS = {
    "operator": lambda x, w: sf.scan(sf.Affine, a=x.sigmoid() * w, b=x),
    "recurrence": lambda x, w: sf.scan(Decay, x=x, w=w),
    "from the right": lambda x, w: sf.scan(Decay, x=x, w=w, reverse=True, return_final_state=True),
    "reset and mask": lambda x, w: sf.scan(Decay, x=x, w=w, reset=x[..., 0] > 0, mask=x[..., 1] > -1),
    "lengths": lambda x, w: sf.scan(Decay, x=x, w=w, lengths=(x[..., 0] > 0).sum(1)),
    "half precision": lambda x, w: sf.scan(Decay, x=x.bfloat16(), w=w),
    "two scans": lambda x, w: sf.scan(Decay, x=sf.scan(Decay, x=x, w=w), w=w, reverse=True),
}
every_layer = pytest.mark.parametrize("function", LAYERS.values(), ids=LAYERS)


def exported(layer: nn.Module, strict: bool = False) -> ExportedProgram:
    sizes = {0: Dim("b", min=2, max=64), 1: Dim("t", min=2, max=4096)}
    return torch.export.export(layer, (drawn(2, 9, 3),), dynamic_shapes=(sizes,), strict=strict)


def reloaded(program: ExportedProgram) -> nn.Module:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


def scans(program: ExportedProgram) -> int:
    return sum(str(n.target).startswith("scanforge.") for n in program.graph.nodes)


@every_layer
@pytest.mark.parametrize("strict", [False, True])
def test_req42_one_node_with_dynamic_length(function, strict):
    layer = Layer(function)
    program = exported(layer, strict)
    assert scans(program) == 1 + (function is LAYERS["two scans"])
    again = reloaded(program)
    for batch, steps in [(2, 9), (3, 50), (2, 301)]:
        x = drawn(batch, steps, 3, seed=steps)
        for got, want in zip(tree_leaves(again(x)), tree_leaves(layer(x)), strict=True):
            assert torch.equal(got, want)


@every_layer
def test_what_is_reloaded_has_gradients(function):
    layer, x = Layer(function), drawn(3, 12, 3)
    again = reloaded(exported(layer))
    for module in (layer, again):
        first = tree_leaves(module(x))[0]
        first.float().cos().sum().backward()
    (got,) = [p.grad for p in again.parameters()]
    assert_close(got, layer.w.grad, "gradient")


def test_expanded_state():
    class Whole(nn.Module):
        def forward(self, u, dt, A, B, C, D):
            return sf.scan(SelectiveSSM, u=u, dt=dt, A=A, B=B, C=C, D=D)

    entry, t = recurrences.BY_NAME["SelectiveSSM"], Dim("t", min=2, max=4096)
    small, big = (recurrences.draw(entry, torch.float32, t=steps)[0] for steps in (5, 77))
    timed = {n: {1: t} if " t " in part.axes else {} for n, part in entry.inputs.items()}
    program = torch.export.export(Whole(), (), small, dynamic_shapes=timed)
    assert scans(program) == 1
    assert torch.equal(reloaded(program)(**big), Whole()(**big))


def test_a_decoding_step():
    class Decoder(nn.Module):
        def forward(self, h, a, b):
            return sf.step(sf.Affine, h, a=a, b=b)

    h, a, b = (drawn(2, 3, seed=k) for k in range(3))
    program = torch.export.export(Decoder(), (h, a, b))
    assert scans(program) == 1
    for x, y in zip(reloaded(program)(h, a, b), Decoder()(h, a, b), strict=True):
        assert torch.equal(x, y)


def test_packed_sequences():
    class Packed(nn.Module):
        def forward(self, x, bounds):
            return sf.scan(sf.Affine, a=torch.ones_like(x), b=x, cu_seqlens=bounds)

    x = drawn(1, 9, 4)
    again = reloaded(torch.export.export(Packed(), (x, torch.tensor([0, 4, 9]))))
    assert_close(again(x, torch.tensor([0, 2, 9])), Packed()(x, torch.tensor([0, 2, 9])), "forward")


def test_another_process_loads_it(tmp_path: Path):
    """Nothing of the declaration is needed there; the ops are, which `import scanforge.ops` defines."""
    layer, x = Layer(LAYERS["recurrence"]), drawn(3, 20, 3)
    torch.export.save(exported(layer), tmp_path / "layer.pt2")
    torch.save((x, layer(x).detach()), tmp_path / "values.pt")
    program = (
        "import sys, torch, scanforge.ops\n"
        "x, want = torch.load(sys.argv[1] + '/values.pt')\n"
        "got = torch.export.load(sys.argv[1] + '/layer.pt2').module()(x)\n"
        "assert torch.equal(got, want)\n"
    )
    run_warm("-c", program, str(tmp_path), cwd=tmp_path)


class TestPlainOps:
    @every_layer
    @pytest.mark.parametrize("steps", [1, 9])
    def test_on_request(self, function, steps):
        layer, x = Layer(function), drawn(2, steps, 3)
        program = torch.export.export(layer, (x,))
        plain = program.run_decompositions(scanforge.ops.decompositions())
        assert scans(program)
        assert not scans(plain)
        for got, want in zip(
            tree_leaves(plain.module()(x)),
            tree_leaves(layer(x)),
            strict=True,
        ):
            assert_close(got, want, "forward")

    def test_a_dynamic_length_has_none(self):
        with pytest.raises(Exception, match="export with a static length of 1 or more"):
            exported(Layer(LAYERS["operator"])).run_decompositions(scanforge.ops.decompositions())

    def test_packed_sequences_have_none(self):
        class Packed(nn.Module):
            def forward(self, x, bounds):
                return sf.scan(sf.Affine, a=x, b=x, cu_seqlens=bounds)

        program = torch.export.export(Packed(), (drawn(1, 9, 4), torch.tensor([0, 4, 9])))
        with pytest.raises(Exception, match="packed sequences"):
            program.run_decompositions(scanforge.ops.decompositions())
