"""Other implementations of what scanforge computes, one module a library."""

from __future__ import annotations

from benchmarks.peers import accelerated, fla, jax_scan, torch_scan
from benchmarks.peers.peer import Peer
from benchmarks.problems import Problem

PEERS: tuple[Peer, ...] = (*fla.PEERS, *torch_scan.PEERS, *jax_scan.PEERS, *accelerated.PEERS)


def of(problem: Problem) -> list[Peer]:
    return [peer for peer in PEERS if problem.operator in peer.operators]


def versions() -> dict[str, str]:
    """Of what is installed."""
    found = {peer.distribution: peer.version() for peer in PEERS}
    return {name: version for name, version in found.items() if version}
