"""Every error that scanforge raises for a user, each a whole sentence about the user's own call."""

from __future__ import annotations


class ScanforgeError(Exception):
    """Base of all errors that scanforge raises on purpose."""


class DeclarationError(ScanforgeError, TypeError):
    """A class body that declares no valid operator: a reserved name, a missing method, a bad option."""


class TraceError(ScanforgeError, TypeError):
    """A method that cannot be traced: a Python `if` on a value, a captured tensor, a foreign function."""


class LawError(ScanforgeError, ValueError):
    """A law that the operator breaks.

    Attributes: `law` and `operator` are names, `sample` maps each symbol to its value, and
    `left` and `right` map each state to the two results that should have been equal.
    """

    def __init__(
        self,
        message: str,
        *,
        law: str = "",
        operator: str = "",
        sample: dict[str, str] | None = None,
        left: dict[str, str] | None = None,
        right: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.law, self.operator = law, operator
        self.sample, self.left, self.right = sample or {}, left or {}, right or {}


class InputError(ScanforgeError, ValueError):
    """A call whose tensors or options do not fit the declaration. Nothing has run."""


class ArgumentError(InputError, TypeError):
    """A missing or unknown tensor, or an option outside its range."""


class ShapeError(InputError):
    """A rank, an axis or a size that does not fit."""


class DTypeError(InputError, TypeError):
    """A tensor whose dtype does not fit the declared kind."""


class DeviceError(InputError):
    """Tensors of one call on several devices."""


class BackendError(ScanforgeError, RuntimeError):
    """The chosen backend cannot run here; the message names what is missing and what to write."""


class GroupError(ScanforgeError, RuntimeError):
    """A group of processes that does not work together: one died or came late, or they differ in the call."""
