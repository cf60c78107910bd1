"""Triton's interpreter without what it works out again for every operation: it computes the same.

Most of its time goes into names of types, shapes wrapped number by number, the language's modules listed
anew at each call of a device function, sources cut out of their files token by token, and a check for
overflow that reports to nobody. Here each is found once. `tests/interpreter/test_quick_interpreter.py`
compares with Triton's own.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from functools import lru_cache
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

Dims = tuple[Any, ...]
Pair = tuple[core.tensor, core.tensor]

PLAIN = {"fp32", "fp64", "int32", "int64"}
_dtypes: dict[str, np.dtype] = {}
_callables: dict[Any, list[str]] = {}
_patched: set[int] = set()
_blocks: dict[tuple[Dims, str], tuple[Any, int, str]] = {}
_tensors: dict[Dims, tuple[Any, Any]] = {}


def np_dtype(of: core.dtype) -> np.dtype:
    """By the name of the element's type; pointers, and blocks of them, are addresses."""
    element = of.element_ty if isinstance(of, core.block_type) else of
    name = "pointer" if isinstance(element, core.pointer_type) else element.name
    found = _dtypes.get(name)
    if found is None:
        found = _dtypes[name] = OWN["np_dtype"](of)
    return found


def patch_lang(function: Any) -> Any:
    """Once in a launch for the functions of one module, which all see the same language."""
    names = id(function.__globals__)
    if names in _patched:
        return interpreter._LangPatchScope()
    _patched.add(names)
    return OWN["patch_lang"](function)


def restore(self: Any) -> None:
    """At the end of a launch."""
    _patched.clear()
    OWN["restore"](self)


def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
    """Those builtins of a package that nobody has replaced yet."""
    if package not in _callables:
        _callables[package] = [name for name, member in inspect.getmembers(package) if callable(member)]
    for name in _callables[package]:
        member = getattr(package, name, None)
        if core.is_builtin(member):
            scope.set_attr(package, name, _with_semantic(getattr(member, "__wrapped__", member)))


def _with_semantic(function: Any) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        options["_semantic"] = interpreter.interpreter_semantic
        return function(*args, **options)

    return call


def rewrite_ast(self: Any) -> FunctionType:
    """Triton's own transformation, of a function that is found by its line in its parsed file."""
    code = self.fn.__code__
    node = _functions(code.co_filename).pop(code.co_firstlineno, None)
    if node is None or node.name != code.co_name:
        return OWN["rewrite_ast"](self)
    node.decorator_list = []
    _transform(self.ast_transformer, node)
    self.filename = code.co_filename
    return self._compile_and_exec(ast.Module([node], type_ignores=[]))


def _transform(transformer: Any, block: Any) -> None:
    """It is of assignments, which stand in blocks only: no expression is searched for them."""
    for statement in (*block.body, *getattr(block, "orelse", ())):
        if isinstance(statement, ast.Assign):
            call = transformer.visit_Assign(statement).value
            for new in (call, call.func, call.func.value, call.args[1]):
                ast.copy_location(new, statement)
        elif hasattr(statement, "body"):
            _transform(transformer, statement)


@lru_cache(maxsize=64)
def _functions(file: str) -> dict[int, ast.FunctionDef]:
    """Those of a generated file, by the line of the first decorator."""
    tree = ast.parse("".join(linecache.getlines(file)))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {min([node.lineno, *(d.lineno for d in node.decorator_list)]): node for node in found}


def tensor(self: core.tensor, handle: Any, type: core.dtype) -> None:
    """Tensors of one shape share it: nobody writes into it."""
    dims = tuple(type.shape.values) if type.is_block() else ()
    found = _tensors.get(dims)
    if found is None:
        OWN["tensor"](self, handle, type)
        _tensors[dims] = self.numel, self.shape
    else:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = found


def block(self: core.block_type, element_ty: core.dtype, shape: Any) -> None:
    """A shape that was found valid is so again."""
    key = tuple(shape.values if isinstance(shape, core.tuple) else shape), element_ty.name
    found = _blocks.get(key)
    if found is None:
        OWN["block"](self, element_ty, shape)
        _blocks[key] = self.shape, self.numel, self.name
    else:
        self.element_ty = element_ty
        self.shape, self.numel, self.name = found


def same_dtype(self: core.dtype, other: Any) -> bool:
    return self.name == other.name if isinstance(other, core.dtype) else OWN["same_dtype"](self, other)


def operands(self: TritonSemantic, lhs: Any, rhs: Any, *rest: bool, **options: bool) -> Pair:
    """Two tensors of one of these types have it in common, and a number beside one has its type."""
    if options.get("arithmetic_check", True) and all(rest[2:3]):
        if isinstance(lhs, core.tensor) and lhs.dtype.name in PLAIN:
            if isinstance(rhs, core.tensor):
                if lhs.dtype.name == rhs.dtype.name:
                    return broadcast(self, lhs, rhs)
            elif _holds(lhs.dtype, rhs):
                return broadcast(self, lhs, self.scalar_constant(rhs, lhs.dtype))
        elif isinstance(rhs, core.tensor) and rhs.dtype.name in PLAIN and _holds(rhs.dtype, lhs):
            return broadcast(self, self.scalar_constant(lhs, rhs.dtype), rhs)
    return OWN["operands"](self, lhs, rhs, *rest, **options)


def _holds(dtype: core.dtype, number: Any) -> bool:
    """A number that takes no part in finding the common type."""
    if type(number) is float:
        return dtype.name in {"fp32", "fp64"}
    return type(number) is int and -(2**31) <= number < 2**31


def broadcast(self: TritonSemantic, lhs: core.tensor, rhs: core.tensor) -> Pair:
    """Two blocks of one shape, or two scalars, are left; a scalar beside a block takes its shape."""
    one, other = lhs.type, rhs.type
    if one.is_block() and other.is_block():
        same = one.shape.values == other.shape.values
        return (lhs, rhs) if same else OWN["broadcast"](self, lhs, rhs)
    if one.is_block():
        return lhs, _splat(self, rhs, one)
    if other.is_block():
        return _splat(self, lhs, other), rhs
    return lhs, rhs


def _splat(self: TritonSemantic, scalar: core.tensor, like: core.block_type) -> core.tensor:
    type = like.with_element_ty(scalar.type.scalar)
    return self.tensor(self.builder.create_splat(type, scalar.handle), type)


def overflow(self: TritonSemantic, lhs: core.tensor, rhs: core.tensor, operation: Any) -> None:
    """What it finds is told to a device_assert, which the interpreter's options switch off."""
    if self.builder.options.debug:
        OWN["overflow"](self, lhs, rhs, operation)


REPLACED = {
    "np_dtype": (interpreter, "_get_np_dtype", np_dtype),
    "patch_lang": (interpreter, "_patch_lang", patch_lang),
    "patch_builtin": (interpreter, "_patch_builtin", patch_builtin),
    "restore": (interpreter._LangPatchScope, "restore", restore),
    "rewrite_ast": (interpreter.FunctionRewriter, "rewrite_ast", rewrite_ast),
    "tensor": (core.tensor, "__init__", tensor),
    "block": (core.block_type, "__init__", block),
    "same_dtype": (core.dtype, "__eq__", same_dtype),
    "operands": (TritonSemantic, "binary_op_type_checking_impl", operands),
    "broadcast": (TritonSemantic, "broadcast_impl_value", broadcast),
    "overflow": (TritonSemantic, "binary_op_sanitize_overflow_impl", overflow),
}
OWN = {what: getattr(owner, name) for what, (owner, name, _) in REPLACED.items()}


def install() -> None:
    """For this process."""
    for owner, name, function in REPLACED.values():
        setattr(owner, name, function)


def tritons_own(patch: pytest.MonkeyPatch) -> None:
    """Until `patch` is undone, and for functions that were run before too."""
    patch.setattr(interpreter.InterpretedFunction, "rewritten_fn", {})
    for what, (owner, name, _) in REPLACED.items():
        patch.setattr(owner, name, OWN[what])
