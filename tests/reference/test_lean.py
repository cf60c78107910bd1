"""A replay does less than what was recorded, in less memory, and gives the same numbers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scanforge import tape
from scanforge.repeats import recorded
from scanforge.replay_text import function_of
from scanforge.workspace import ALIGNED, Room, most, packed, pieces

N = 200  # entries of what kernels work on: more than one unit of memory


def replay_of(run: Callable[..., Any], *tensors: Tensor) -> tuple[Callable[..., Any], tape.Tape]:
    recorder, _ = recorded(lambda own: run(*own), tensors, gradient=False)
    assert not recorder.trouble
    return function_of(recorder.tapes[0]), recorder.tapes[0]


def text_of(run: Callable[..., Any], *tensors: Tensor) -> str:
    """The text of a replay that gives what the function gives, on other numbers too."""
    replay, _ = replay_of(run, *tensors)
    places = set()
    for again in (tensors, [x.flip(0) + 1 for x in tensors]):
        before = [x.clone() for x in again]
        got, want = replay(*again), run(*before)
        got, want = (x if isinstance(x, tuple) else (x,) for x in (got, want))
        for x, y in zip((*got, *again), (*want, *before), strict=True):
            assert torch.equal(x, y)
            assert (x.dtype, x.stride()) == (y.dtype, y.stride())
        assert places.isdisjoint(places := {x.data_ptr() for x in got}), "a result of two calls"
    text: str = replay.__doc__ or ""
    return text


def x(*shape: int) -> Tensor:
    return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape)


def test_a_sum_is_not_added_to_zeros_then_copied():
    def run(parts: Tensor) -> Tensor:
        total = parts.new_zeros(4)
        total += parts.sum([0, 1]).permute(0)
        wide = torch.zeros(4)
        wide.as_strided((4,), (1,), 0).copy_(total)
        out = torch.empty(4, dtype=torch.bfloat16)
        out.copy_(wide)
        return out

    lines = text_of(run, x(2, 3, 4)).splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["t2", "t6", "del", "return"]
    assert ".sum(" in lines[0]
    assert ".to(" in lines[1]


def test_what_nobody_looks_at_is_not_written():
    def run(a: Tensor) -> Tensor:
        end = torch.empty(4)
        end.as_strided((4,), (1,), 0).copy_(a[1])
        end.mul_(2)
        return a + 1

    assert "copy_" not in text_of(run, x(2, 4))
    assert "mul" not in text_of(run, x(2, 4))


def test_what_was_given_is_written_if_nobody_looks():
    def run(a: Tensor, b: Tensor) -> Tensor:
        a.copy_(b)
        return b + 1

    replay, _ = replay_of(run, x(4), x(4) * 2)
    a, b = x(4), x(4) * 3
    replay(a, b)
    assert torch.equal(a, b)


def test_numbers_are_made_once():
    def run(a: Tensor) -> Tensor:
        return a + a.new_full((), 3.0) * torch.full((), 2.0)

    assert "full" not in text_of(run, x(4))


def used_again(a: Tensor) -> Any:
    s = a.sum(0)
    t = torch.zeros(4).add_(s)
    t += 1
    return t, s


def written_before(a: Tensor) -> Tensor:
    t = torch.zeros(4)
    t[0].fill_(5.0)
    return t.add_(a.sum(0))


def a_part(a: Tensor) -> Tensor:
    t = torch.zeros(4)
    t[1:].add_(a[0, 1:])
    return t


def broadcast(a: Tensor) -> Tensor:
    return torch.zeros(2, 4).add_(a[0])


def a_row(a: Tensor) -> Tensor:
    return torch.zeros(2, 4).add_(a[:1] + 1)


def turned(a: Tensor) -> Tensor:
    t = torch.zeros(4, 2)
    t.t().add_(a + 1)
    return t


def other_strides(a: Tensor) -> Tensor:
    t = torch.empty(2, 4)
    t.copy_((a.t().contiguous() + 1).t())
    return t


def own_strides(a: Tensor) -> Any:
    t, u = torch.empty(2, 4), torch.empty(2, 4, dtype=torch.float64)
    t.copy_(a.t().contiguous().t() + 1)
    u.copy_(a.t().contiguous().t() + 1)
    return t, u


def with_gaps(a: Tensor) -> Tensor:
    t = torch.empty_strided((2, 4), (8, 1), dtype=torch.float64)
    t.copy_(torch.empty_strided((2, 4), (8, 1)).copy_(a + 1))
    return t


def of_what_was_given(a: Tensor) -> Tensor:
    t = torch.empty(2, 4)
    t.copy_(a)
    return t.mul_(2)


def times_two(a: Tensor) -> Tensor:
    return torch.zeros(4).add_(a.sum(0), alpha=2)


def promoted(a: Tensor) -> Tensor:
    return torch.zeros(4).add_(a.sum(0).to(torch.bfloat16))


def a_view_of_it_later(a: Tensor) -> Any:
    t = torch.empty(4)
    half = t[2:]
    t.copy_(a.sum(0))
    half += 1
    return t, half


def two_of_one(a: Tensor) -> Any:
    s = a.sum(0)
    t, u = torch.empty(4), torch.empty(4)
    t.copy_(s)
    u.copy_(s)
    t += 1
    return t, u


def a_number(a: Tensor) -> Any:
    t = torch.empty(())
    t.copy_(a.new_full((), 2.0))
    return t, a + 1


TRAPS = [
    used_again, written_before, a_part, broadcast, a_row, turned, other_strides, own_strides, with_gaps,
    of_what_was_given, times_two, promoted, a_view_of_it_later, two_of_one, a_number,
]  # fmt: skip


@pytest.mark.parametrize("trap", TRAPS, ids=lambda f: f.__name__)
def test_a_shortcut_that_is_none(trap):
    """Each is like what is done with less, but for one thing."""
    text_of(trap, x(2, 4))


class Sum:
    """A kernel that adds up memory at addresses, without an allocator's or a tensor's knowledge of it."""

    arg_names = ("ptr_a", "ptr_b", "ptr_out")
    function, packed_metadata = object(), (1, 1, 0)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launched(*tensors: Tensor) -> Sum:
            self.run(*grid, 1, 1, 0, None, None, None, None, None, *(t.data_ptr() for t in tensors))
            return self

        return launched

    def run(self, *args: Any) -> None:
        a, b, out = ((ctypes.c_float * N).from_address(p) for p in args[9:])
        out[:] = [p + 2 * q for p, q in zip(a, b, strict=True)]


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Which of what was there before each kernel reads; it leaves one more."""
    return [(draw(st.integers(0, k)), draw(st.integers(0, k))) for k in range(draw(st.integers(1, 9)))]


@settings(max_examples=60, deadline=None)
@given(programs(), st.booleans(), st.booleans())
def test_kernels_find_what_others_left(program: list[tuple[int, int]], early: bool, summed: bool):
    """Rooms are made at the start or as they are needed; the last one is returned, or torch's sum of it."""

    def run(given: Tensor) -> Tensor:
        rooms: Iterator[Tensor] = (torch.empty(N) for _ in program)
        there = [given]
        rooms = iter([*rooms]) if early else rooms
        for a, b in program:
            out = next(rooms)
            tape.launch(Sum(), (1,), (there[a], there[b], out), {})
            there.append(out)
        return there[-1].sum(0) if summed else there[-1]

    replay, noted = replay_of(run, x(N))
    for numbers in (x(N), x(N).flip(0)):
        assert torch.equal(replay(numbers), run(numbers))
    found = pieces(noted)
    text: str = replay.__doc__ or ""
    assert text.count("empty_strided(") == len(program) - sum(len(p.offsets) - 1 for p in found)


ROOMS = st.builds(
    lambda size, first, length: Room(size * ALIGNED, first, first + length),
    st.integers(0, 40), st.integers(0, 12), st.integers(0, 12),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(ROOMS, max_size=12))
def test_rooms_in_use_at_one_time_lie_apart(rooms: list[Room]):
    offsets, size = packed(rooms)
    placed = [*zip(offsets, rooms, strict=True)]
    assert size <= sum(r.size for r in rooms)
    assert size >= most(rooms)
    for k, (p, a) in enumerate(placed):
        assert p + a.size <= size
        assert p % ALIGNED == 0
        for q, b in placed[:k]:
            apart = p + a.size <= q or q + b.size <= p
            assert apart or a.last < b.first or b.last < a.first


def test_rooms_do_not_share_where_more_would_be_held():
    """A small one for long and a large one at first: the piece would be as large for as long."""

    def run(given: Tensor) -> Tensor:
        large, small, out = torch.empty(64 * N), torch.empty(N), torch.empty(N)
        tape.launch(Sum(), (1,), (given, given, large), {})
        tape.launch(Sum(), (1,), (large, given, small), {})
        late = torch.empty(64 * N).copy_(given.repeat(64))
        tape.launch(Sum(), (1,), (small, late, out), {})
        return out

    replay, noted = replay_of(run, x(N))
    assert torch.equal(replay(x(N)), run(x(N)))
    assert not pieces(noted)
