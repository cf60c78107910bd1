"""The record of a run: what its numbers depend on, its rows, and the file they are saved in."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


@dataclass
class Results:
    """What the file holds; saved after each row, so that a run cut short keeps what it has."""

    out: Path
    stamp: dict[str, Any]
    copy: dict[str, Any] = field(default_factory=dict)
    first_call: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row and print it."""
        self.rows.append(row)
        self.save()
        print(line(row), flush=True)

    def save(self) -> None:
        held = {n: getattr(self, n) for n in ("stamp", "copy", "first_call", "rows")}
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


def default_out(stamp: dict[str, Any], kind: str = "") -> Path:
    """A dated file for the figures; elsewhere what holds a part of the rows, or none that is timed."""
    if stamp["dry_run"] or stamp["only"]:
        return ROOT / "build" / "bench" / f"{kind}part.json"
    device = "".join(c if c.isalnum() else "-" for c in stamp["device"].lower())
    return RESULTS / f"{stamp['date'][:10]}-{kind}{device}.json"


def rate(nbytes: int, milliseconds: float) -> float:
    """TB/s."""
    return nbytes / milliseconds / 1e9


def environment(device: str, commit: str, only: str) -> dict[str, Any]:
    """What a number depends on."""
    stamp: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": "cpu",
        "commit": commit or shell("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": metadata.version("triton"),
        "dry_run": device == "cpu",
        "only": only,
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        stamp |= {
            "device": properties.name,
            "driver": queried("driver_version"),
            "cuda": torch.version.cuda,
            "clock_mhz": float("".join(c for c in queried("clocks.max.sm") if c.isdigit()) or 0),
            "processors": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "memory_bytes": properties.total_memory,
        }
    return stamp


def queried(field: str) -> str:
    return shell("nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader", "--id=0")


def shell(*command: str) -> str:
    """What a command prints; nothing where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def line(row: dict[str, Any]) -> str:
    """A row for people: fraction of the copy, the device's time, as called, the host's, errors."""
    what = f"{row['operator']:13} {'x'.join(map(str, row['size'])):12} {row['layout']} {row['dtype']:8}"
    start = f"{row['implementation'][:24]:24} {what} {row['direction']:20}"
    if "unavailable" in row:
        return f"{start} not run: {row['unavailable']}"
    if "failed" in row and "called" not in row:
        return f"{start} FAILED {row['failed']}"
    parts = [f"{row['fraction']:.3f} of copy"] if "fraction" in row else []
    parts += [f"{row['fraction_replayed']:.3f} replayed"] if "fraction_replayed" in row else []
    measured = [name for name in ("cold", "replayed", "streamed", "called", "host") if name in row]
    parts += [f"{name} {1e3 * row[name]['median']:.1f} µs" for name in measured]
    parts += [f"{row['tflop_s']:.0f} TFLOP/s"] if "tflop_s" in row else []
    parts += [f"{row['peak_bytes'] / 2**30:.2f} GiB"] if "peak_bytes" in row else []
    if "failed" in row:
        parts.append(f"FAILED {row['failed']}")
    if row["error"]:
        parts.append(f"errors {' '.join(f'{e:.1e}' for e in row['error'].values())}")
    return f"{start} {', '.join(parts)}"


def finish(results: Results, began: float) -> None:
    """Save, and print what a reader wants last: the fractions of the rows side by side."""
    results.stamp["seconds"] = round(time.time() - began, 1)
    results.save()
    print()
    print(*table(results.rows), sep="\n")
    if results.copy:
        print(f"copy {results.copy['rate_tb_s']:.3f} TB/s, at the end {results.copy['again_tb_s']:.3f}")
    for name, seconds in results.first_call.items():
        shown = (
            seconds if isinstance(seconds, str) else ", ".join(f"{k} {v:.2f} s" for k, v in seconds.items())
        )
        print(f"first call, {name}: {shown}")
    failed = sum("failed" in r for r in results.rows)
    print(f"{len(results.rows)} rows, {failed} failed, {results.stamp['seconds']} s, {results.out.name}")


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Fractions of the copy: a line for each operator, shape and dtype, a column for each direction."""
    found: dict[str, list[str]] = {}
    for row in rows:
        what = f"{row['operator']:13} {'x'.join(map(str, row['size'])):12} {row['layout']} {row['dtype']:8}"
        said = next(
            (word for key, word in (("failed", "failed"), ("unavailable", "–")) if key in row), "passed"
        )
        cell = f"{row['fraction']:.3f}" if "fraction" in row else said
        found.setdefault(f"{row['implementation'][:24]:24} {what}", []).append(f"{cell:>7}")
    return [f"{what} {' '.join(cells)}" for what, cells in found.items()]
