"""The object that a user names on the command line, and the inputs to check it at."""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from backpass import ops
from backpass.commands.command import SEED, InvalidCommand, Option, switch, value
from backpass.commands.devices import DTYPES

INTEGERS = ("int64", "int32")
_INPUT = re.compile(
    r"(?P<shape>scalar|\d+(?:x\d+)*)(?::(?P<dtype>\w+))?"
    r"(?:<(?P<below>\d+)(?:,(?P<sentinel>-?\d+))?)?"
)
TARGET = value("target", "module:object", "a module or a file.py, and the object in it")


def _each(flag: str, metavar: str, help: str) -> Option:
    """Return an option that may be repeated."""
    return value(flag, metavar, help, action="append")


OPTIONS = (  # what is checked and how, after the target
    _each("--input", "SHAPE", "draw an input; repeat in forward's order").but(
        default=[]
    ),
    value(
        "--inputs",
        "MODULE:FUNCTION",
        "a function that returns the inputs, instead of --input",
    ),
    switch(
        "--torch", help="draw PyTorch tensors (an autograd.Function always gets them)"
    ),
    SEED,
    _each("--option", "NAME=VALUE", "an option of forward; a Python literal").but(
        default=[]
    ),
    value(
        "--operator",
        "MODULE:FUNCTION",
        "a PyTorch function that computes the same output",
    ),
    _each("--method", "NAME", "run only this method; may be repeated"),
    _each("--constant", "NAME", "an input that has no gradient"),
    _each("--zero-gradient", "NAME", "an input whose gradient is identically zero"),
    value(
        "--precision",
        "DTYPE",
        "the dtype in which forward computes, whatever dtype it returns",
    ),
    _each(
        "--convention",
        "NAME=REASON",
        "an input whose gradient is a convention, not a derivative",
    ),
)


class Raised(Exception):
    """Raised when the user's code raised an exception, which is the ``__cause__``.

    The code is the user's module, its class, or the function that returns the inputs.
    """


def requested(
    arguments: argparse.Namespace,
) -> tuple[object, tuple[object, ...], dict[str, Any]]:
    """Return the object, its inputs, and the keywords of ``check``.

    Raises InvalidCommand for a wrong argument, and Raised if the user's code fails.
    """
    options = dict(_option(text) for text in arguments.option)
    given: dict[str, Any] = {
        "methods": arguments.method,
        "zero_gradients": arguments.zero_gradient,
        "constants": arguments.constant,
        "precision": arguments.precision,
    }
    if arguments.convention:
        given["conventions"] = dict(
            _pair("--convention", text, "NAME=REASON") for text in arguments.convention
        )
    if arguments.operator:
        given["operator"] = load("--operator", arguments.operator)
    given = {name: value for name, value in given.items() if value is not None}
    op = _instance(load("module:object", arguments.target))
    inputs, defaults = _inputs(op, arguments, options)
    given |= {"seed": arguments.seed, "options": {**defaults, **options}}
    return op, inputs, given


# The object


def load(argument: str, target: str) -> Any:
    """Return what ``module:object``, ``file.py:object`` or a module alone names.

    Raises InvalidCommand if the object is missing, and Raised if importing the module
    fails.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    where, _, name = ("", "", "") if target.endswith(".py") else target.rpartition(":")
    value: Any = _module(argument, where or target)
    for part in name.split(".") if where else ():
        if not hasattr(value, part):
            names = getattr(value, "__dict__", ())
            named = [other for other in names if not other.startswith("_")]
            near = difflib.get_close_matches(part, named, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidCommand(
                f"{argument} {target}: {where} has nothing called {part!r}{hint}"
            )
        value = getattr(value, part)
    return value


def _instance(op: Any) -> Any:
    """Return the object, or an instance of a class whose forward takes self.

    The class is called without arguments.
    """
    from backpass.verify.subject import is_function

    forward = getattr(op, "forward", None)
    if not isinstance(op, type) or not callable(forward) or is_function(op):
        return op
    if next(iter(inspect.signature(forward).parameters), "") != "self":
        return op
    with _raising():
        return op()


def _module(argument: str, where: str) -> ModuleType:
    if where.endswith(".py"):
        path = Path(where).resolve()
        if not path.is_file():
            raise InvalidCommand(f"{argument} {where}: there is no such file")
        return _from_file(path)
    if not all(part.isidentifier() for part in where.split(".")):
        raise InvalidCommand(
            f"{argument} {where}: expected module:object or path/to/file.py:object"
        )
    try:
        with _raising():
            return importlib.import_module(where)
    except Raised as raised:
        missing = getattr(raised.__cause__, "name", None)
        absent = isinstance(raised.__cause__, ModuleNotFoundError)
        if absent and f"{where}.".startswith(f"{missing}."):
            hint = ""
            if where in ops.STEMS:
                hint = f"; backpass verify {where} checks the book's operation"
            raise InvalidCommand(
                f"{argument} {where}: there is no module {missing!r} in {Path.cwd()}, "
                f"and none is installed{hint}"
            ) from None
        raise


def _from_file(path: Path) -> ModuleType:
    """Import the file as a module, once, with its folder on the path."""
    name = path.stem
    if getattr(sys.modules.get(name), "__file__", None) == str(path):
        return sys.modules[name]
    sys.path.insert(0, str(path.parent))
    name = f"{name}_" if name in sys.modules or not name.isidentifier() else name
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # as for every file.py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _raising():
        spec.loader.exec_module(module)
    return module


# The inputs


def _inputs(
    op: object, arguments: argparse.Namespace, options: Mapping[str, object]
) -> tuple[tuple[object, ...], dict[str, Any]]:
    """Return the inputs and, if they were drawn for SHAPES, the options for them. The
    declaration may name a given option as the value of an integer."""
    from backpass.verify.drawing import INPUTS, drawn_inputs, generator, options_for
    from backpass.verify.subject import is_function

    if arguments.seed < 0:
        raise InvalidCommand(f"--seed: expected 0 or more; got {arguments.seed}")
    if arguments.inputs and arguments.input:
        raise InvalidCommand("--inputs: expected either --inputs or --input; got both")
    if arguments.inputs:
        function = load("--inputs", arguments.inputs)
        with _raising():
            returned = function()
        several = isinstance(returned, (tuple, list))
        return tuple(returned) if several else (returned,), {}
    specs = [_spec(text) for text in arguments.input]
    torch = (
        arguments.torch
        or getattr(arguments, "compiled", False)  # a kernel takes only tensors
        or is_function(op)
        or any(spec.dtype == "bfloat16" for spec in specs)
    )
    if torch and importlib.util.find_spec("torch") is None:
        raise InvalidCommand(
            "--torch: PyTorch is not installed; it comes with backpass[torch]"
        )
    rng = generator(arguments.seed, INPUTS)
    if specs:
        return tuple(_drawn(spec, rng, torch) for spec in specs), {}
    if getattr(op, "SHAPES", None) is None:
        raise InvalidCommand(
            "--input: expected the shape of each input, because "
            f"{arguments.target} declares no SHAPES; got none"
        )
    return drawn_inputs(op, rng, tensors=torch, options=options), options_for(op)


class _Spec(NamedTuple):
    """What ``--input`` says: a shape, or None for ``none``; a dtype; and of integers
    the bound, and one that the last element is to have, such as a label to ignore."""

    shape: tuple[int, ...] | None
    dtype: str = "float64"
    below: int | None = None
    sentinel: int | None = None


def _spec(text: str) -> _Spec:
    if text == "none":
        return _Spec(None)
    match = _INPUT.fullmatch(text)
    if not match:
        raise InvalidCommand(
            f"--input {text}: expected a shape such as 4x6, 4x6:float32 or '3:int64<10', "
            "or scalar, or none"
        )
    lengths = [] if match["shape"] == "scalar" else match["shape"].split("x")
    dtype, below = match["dtype"] or "float64", match["below"]
    if dtype not in (*DTYPES, *INTEGERS, "bool"):
        raise InvalidCommand(
            f"--input {text}: expected a dtype, one of {', '.join((*DTYPES, *INTEGERS))}, "
            f"bool; got {dtype}"
        )
    if dtype in INTEGERS and not int(below or 0):
        raise InvalidCommand(
            f"--input {text}: expected a bound for the integers, "
            f"as in '{match['shape']}:{dtype}<10'"
        )
    if dtype not in INTEGERS and below:
        raise InvalidCommand(
            f"--input {text}: expected a bound for integers only; got one for {dtype}"
        )
    given = (None if x is None else int(x) for x in (below, match["sentinel"]))
    return _Spec(tuple(map(int, lengths)), dtype, *given)


def _drawn(spec: _Spec, rng, torch: bool) -> object:
    import numpy as np

    shape, dtype = spec.shape, spec.dtype
    if shape is None:
        return None
    if dtype in DTYPES:
        values = np.asarray(rng.standard_normal(shape))
        values = values if dtype in ("float64", "bfloat16") else values.astype(dtype)
    else:
        values = np.asarray(rng.integers(spec.below or 2, size=shape), dtype=dtype)
        if spec.sentinel is not None and values.size:
            values.reshape(-1)[-1] = spec.sentinel
    if not torch:
        return values
    import torch as library

    return library.as_tensor(values).to(getattr(library, dtype))


def _option(text: str) -> tuple[str, object]:
    name, value = _pair("--option", text, "NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        quoted = ""
        if value.isidentifier():
            quoted = f"; a string needs quotes: \"{name}='{value}'\""
        raise InvalidCommand(
            f"--option {text}: expected a Python literal; got {value}{quoted}"
        ) from None


def _pair(argument: str, text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InvalidCommand(f"{argument} {text}: expected {form}")
    return name, value


@contextlib.contextmanager
def _raising() -> Iterator[None]:
    """Mark exceptions of the user's code, to tell them from those of this package."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise Raised from error
