"""Triton's interpreter without what it does again and again.

It looks through the whole of `triton.language` at every call of a function, to put its own functions there, and
makes the same small objects for every number that it touches. `install` puts in place of six of its private
functions ones that remember: the numbers are computed as before, by NumPy, in the same order. It is for the tests,
two thirds of whose time in the interpreter this was. `test_quick_interpreter.py` holds each to what it stands for.
"""

import builtins
import math
from functools import cache
from types import CodeType, FunctionType, SimpleNamespace

import numpy as np
import triton.language as tl
from triton.language import core, semantic
from triton.runtime import interpreter

tensor_made_by_triton = core.tensor.__init__
block_type_made_by_triton = core.block_type.__init__
numpy_dtype_by_triton = interpreter._get_np_dtype
rewritten_by_triton = interpreter.FunctionRewriter.rewrite_ast
overflow_by_triton = semantic.TritonSemantic.binary_op_sanitize_overflow_impl
language_by_triton = interpreter._patch_lang


def install() -> None:
    if interpreter._patch_lang is language_by_triton:
        interpreter._patch_lang = Language()
        interpreter._get_np_dtype = numpy_dtype
        interpreter.FunctionRewriter.rewrite_ast = rewritten
        semantic.TritonSemantic.binary_op_sanitize_overflow_impl = overflow
        core.tensor.__init__ = make_tensor
        core.block_type.__init__ = make_block_type


class Language:
    """Puts the interpreter's functions into `triton.language` when a launch begins and, at its end, takes them out.
    Functions that a kernel calls find them there; Triton would look for them anew, and not take them out."""

    def __init__(self):
        everywhere = SimpleNamespace(__globals__={"tl": tl, "core": core})
        scope = language_by_triton(everywhere)
        self.changes = [(where, name, before, vars(where)[name]) for where, name, before in scope._changes]
        scope.restore()
        self.is_in = False

    def __call__(self, function):
        if self.is_in:
            return SimpleNamespace(restore=lambda: None)
        for where, name, _, now in self.changes:
            setattr(where, name, now)
        self.is_in = True
        return self

    def restore(self) -> None:
        for where, name, before, _ in reversed(self.changes):
            if before is interpreter._MISSING:
                delattr(where, name)
            else:
                setattr(where, name, before)
        self.is_in = False


dtypes: dict[str, np.dtype] = {}


def numpy_dtype(of: tl.dtype) -> np.dtype:
    name = of.scalar.name
    if name not in dtypes:
        dtypes[name] = numpy_dtype_by_triton(of.scalar)
    return dtypes[name]


functions: dict[CodeType, FunctionType] = {}


def rewritten(self) -> FunctionType:
    """Triton reads the source anew in each module that is a copy except for a change elsewhere, as in the tests that change
    kernels. The code of a function there, its lines included, is the same."""
    code, its_globals = self.fn.__code__, self.fn.__globals__
    if code not in functions:
        functions[code] = rewritten_by_triton(self)
    done = functions[code]
    if done.__globals__ is its_globals:
        return done
    for name, value in vars(interpreter).items():
        its_globals.setdefault(name, value)
    again = FunctionType(done.__code__, its_globals, done.__name__, done.__defaults__)
    again.__annotations__ = done.__annotations__
    return again


def overflow(self, lhs: tl.tensor, rhs: tl.tensor, operation) -> None:
    """Triton computes sums and products of integers a second time, in 64 bits, for a comparison that it drops unless
    it debugs."""
    if self.builder.options.debug:
        overflow_by_triton(self, lhs, rhs, operation)


@cache
def shape_and_size(lengths: builtins.tuple) -> builtins.tuple:
    return core.tuple([core.constexpr(length) for length in lengths]), core.constexpr(math.prod(lengths))


def make_tensor(self, handle: interpreter.TensorHandle, type: tl.dtype) -> None:
    self.handle = handle
    self.type = type
    self.dtype = type.scalar
    self.shape, self.numel = shape_and_size(builtins.tuple(type.shape.values) if type.is_block() else ())


block_types: dict[builtins.tuple, builtins.tuple] = {}


def make_block_type(self, element_ty: tl.dtype, shape) -> None:
    key = element_ty.name, *(core._unwrap_if_constexpr(length) for length in shape)
    if key not in block_types:
        block_type_made_by_triton(self, element_ty, shape)
        block_types[key] = self.shape, self.numel, self.name
    self.element_ty = element_ty
    self.shape, self.numel, self.name = block_types[key]
