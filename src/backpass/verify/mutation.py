"""Change the source of a function in one place at a time.

The changes are of signs, factors, axes, sums, operands, and returned values. A check is
worth what it catches: ``mutants(backward)`` yields each changed version, and each must
make the checks fail. Code that only validates (calls of ``check_…``), names the library
or sets a dtype is not changed.
"""

from __future__ import annotations

import ast
import copy
import dis
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from backpass.verify.convert import is_torch

PLUMBING = (
    "check_inputs",
    "check_cotangent",
    "check_saved",
    "narrowed",
    "namespace",
)
# Only the first argument of these calls is changed.
CASTS = ("widened", "as_type_of", "zeros", "is_half", "name_of")
ZEROS = ("zeros", "zeros_like", "new_zeros")
OPPOSITE: dict[type[ast.AST], tuple[type[Any], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.GtE, ast.LtE),
    ast.LtE: (ast.Gt, ast.Lt),
    ast.Gt: (ast.LtE, ast.GtE),
    ast.GtE: (ast.Lt, ast.Gt),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
REDUCTIONS = {"sum": ("mean", "max"), "mean": ("sum",), "max": ("min",)}


class Mutant(NamedTuple):
    """One change.

    ``line`` is the first line of its statement, as ``ast.unparse`` writes it.
    ``number`` is its line in the function, of which the first is 1.
    """

    line: str
    change: str
    tree: ast.Module
    number: int


def mutants(
    function: Callable,
    chosen: Callable[[ast.AST], bool] = lambda node: True,
    exchanged: Callable[[str, str], bool] = lambda name, other: True,
) -> Iterator[Mutant]:
    """Yield every single change of the function, each once.

    Only nodes for which ``chosen`` is true, and what they contain, are changed. A name
    is replaced by each other name for which ``exchanged(name, other)`` is true.
    """
    source = textwrap.dedent(inspect.getsource(function))
    original = ast.parse(source)
    statements = _statements(original)
    texts = {statement: ast.unparse(statement) for statement in statements.values()}
    seen = set(texts.items())
    parents = _parents(original)
    mutable = _mutable(original, chosen)
    for index, node in enumerate(ast.walk(original)):
        if index not in mutable:
            continue
        statement = statements[id(node)]
        for replacement in _alternatives(node, original):
            if (
                isinstance(node, ast.Name)
                and isinstance(replacement, ast.Name)
                and not exchanged(node.id, replacement.id)
            ):
                continue
            changed = _replaced(node, replacement, parents, statement)
            text = ast.unparse(changed)
            if (statement, text) not in seen:
                seen.add((statement, text))
                tree = _replaced(statement, changed, parents, original)
                assert isinstance(tree, ast.Module)
                assert isinstance(node, (ast.expr, ast.stmt))
                line = texts[statement].splitlines()[0]
                change = _change(node, replacement, parents)
                yield Mutant(line, change, tree, node.lineno)


def _statements(tree: ast.Module) -> dict[int, ast.stmt]:
    """Return the innermost statement of each node, by the node's id."""
    return {
        id(node): statement
        for statement in ast.walk(tree)
        if isinstance(statement, ast.stmt)
        for node in ast.walk(statement)
    }


def reached(module: ModuleType, name: str) -> dict[str, FunctionType]:
    """Return the functions of ``module`` that the function ``name`` calls, directly or
    indirectly, and the function itself."""
    found: dict[str, FunctionType] = {}
    wanted = [name]
    while wanted:
        function = vars(module).get(wanted.pop())
        if isinstance(function, FunctionType) and function.__name__ not in found:
            if (
                function.__module__ == module.__name__
                and function.__name__ not in PLUMBING
            ):
                found[function.__name__] = function
                # Not its attributes: `softcap.forward` is not this module's.
                wanted += [
                    instruction.argval
                    for instruction in dis.get_instructions(function)
                    if instruction.opname == "LOAD_GLOBAL"
                ]
    return found


def rebuilt(module: ModuleType, changes: Mapping[str, object]) -> dict[str, object]:
    """Return the module's names after the changes.

    Each function of the module calls the changed functions instead of its own.
    """
    scope = {**vars(module), **changes}
    for name, value in vars(module).items():
        if (
            isinstance(value, FunctionType)
            and value.__module__ == module.__name__
            and name not in changes
        ):
            scope[name] = FunctionType(
                value.__code__, scope, name, value.__defaults__, value.__closure__
            )
            scope[name].__kwdefaults__ = value.__kwdefaults__
    return scope


def compiled(
    mutant: Mutant, module: ModuleType, nonlocals: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return the names of ``module`` with one of its functions changed.

    The changed function sees ``nonlocals`` too.
    """
    function = _function(mutant.tree)
    scope = rebuilt(module, {function.name: None})
    scope.update(nonlocals or {})
    exec(compile(mutant.tree, f"<{module.__name__}: {mutant.change}>", "exec"), scope)
    return scope


def remembered(forward: Callable) -> Callable:
    """Return a forward that computes once for the same arrays and returns copies.

    Changed backwards can share it: none sees what another overwrites. An input that
    forward returns is not copied. Arrays that are symbolic or not contiguous are
    computed each time.
    """
    results: dict[tuple, tuple] = {}

    @functools.wraps(forward)
    def copied(*inputs, **options):
        seen = [_contents(value) for value in inputs]
        if None in seen:
            return forward(*inputs, **options)
        key = (*seen, *options.items())
        if key not in results:
            results[key] = copy.deepcopy((inputs, forward(*inputs, **options)))
        then, result = results[key]
        same = {id(old): new for old, new in zip(then, inputs, strict=True)}
        return copy.deepcopy(result, same)

    return copied


def _contents(value: Any) -> tuple | None:
    """Return everything that a forward sees of an input, or None for an array whose
    copy would differ."""
    if value is None:
        return ()
    if is_torch(value) and value.is_contiguous():
        return "torch", value.dtype, value.shape, value.cpu().numpy().tobytes()
    if isinstance(value, np.ndarray) and value.flags.c_contiguous:
        return "numpy", value.dtype, value.shape, value.tobytes()
    return None


def _mutable(tree: ast.Module, chosen: Callable[[ast.AST], bool]) -> set[int]:
    """Return the positions, in ast.walk's order, of the nodes that may change.

    These are the statements of the body and what they contain, except the docstring and
    plumbing.
    """
    function = _function(tree)
    body = [
        node
        for part in function.body
        if not _is_docstring(part)
        for node in ast.walk(part)
    ]
    mutable = {id(node) for top in body if chosen(top) for node in ast.walk(top)}
    for call in ast.walk(function):
        if _is_call_of(call, PLUMBING):
            mutable -= _ids(call)
        elif _is_call_of(call, CASTS):
            mutable -= _ids(call) - _ids(call.args[0])
    return {index for index, node in enumerate(ast.walk(tree)) if id(node) in mutable}


def _ids(tree: ast.AST) -> set[int]:
    return {id(node) for node in ast.walk(tree)}


def _function(tree: ast.Module) -> ast.FunctionDef:
    """Return the only statement of a tree, which defines the function."""
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef)
    return function


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_call_of(node: ast.AST, names: tuple[str, ...]) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in names
    )


def _called(call: ast.Call) -> str:
    """Return the last name of the function: ``zeros`` of ``np.zeros(…)``."""
    function = call.func
    return getattr(function, "attr", getattr(function, "id", ""))


def _parents(tree: ast.Module) -> dict[int, ast.AST]:
    """Map the id of each node to its parent."""
    return {
        id(child): node
        for node in ast.walk(tree)
        for child in ast.iter_child_nodes(node)
    }


def _replaced(
    target: ast.AST,
    replacement: ast.AST,
    parents: Mapping[int, ast.AST],
    within: ast.AST,
) -> ast.AST:
    """Return ``within`` with the target replaced. Only the target's ancestors are
    copied; the rest is shared with the original."""
    if not hasattr(replacement, "lineno"):  # a part of the tree has its place
        ast.fix_missing_locations(ast.copy_location(replacement, target))
    while target is not within:
        parent = parents[id(target)]
        replacement = _with(parent, target, replacement)
        target = parent
    return replacement


def _change(
    target: ast.AST, replacement: ast.AST, parents: Mapping[int, ast.AST]
) -> str:
    """Describe the change as ``before → after``. A bare name or number is shown with
    the expression that contains it."""
    parent = parents[id(target)]
    if isinstance(target, (ast.Name, ast.Constant)) and isinstance(
        parent, (ast.expr, ast.keyword)
    ):
        replacement = _with(parent, target, replacement)
        target = parent
    return f"{ast.unparse(target)} → {ast.unparse(replacement)}"


def _with(node: ast.AST, part: ast.AST, other: ast.AST) -> ast.AST:
    """Return a copy of the node with one of its parts replaced."""
    node = copy.copy(node)
    for name, value in ast.iter_fields(node):
        if value is part:
            setattr(node, name, other)
        elif isinstance(value, list):
            setattr(node, name, [other if item is part else item for item in value])
    return node


def _alternatives(node: ast.AST, tree: ast.Module) -> Iterator[ast.AST]:
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            yield from (left, right)
            if not isinstance(op, (ast.Add, ast.Mult)):
                yield ast.BinOp(right, op, left)
            for other in _opposites(op):
                yield ast.BinOp(left, other, right)
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Constant(value=float(value)):
            yield from (ast.Constant(2 * value), ast.Constant(-value))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            for other in _opposites(op):
                yield ast.Compare(left, [other], [right])
        case ast.BoolOp(op=op, values=values):
            for other in _opposites(op):
                yield ast.BoolOp(other, values)
            yield from values
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield from (body, orelse)
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.If(test=test, body=body, orelse=orelse):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Call():
            yield from _other_calls(node)
        case ast.Return(value=value) if value is not None:
            yield from map(ast.Return, _other_results(value))
        case ast.Assign(targets=[ast.Name()] as targets, value=value) if (
            not _is_call_of(value, PLUMBING)
        ):
            for other in _scaled(value):
                yield ast.Assign(targets, other)
        case ast.AugAssign(target=target, op=op, value=value):
            yield ast.Assign([target], value)
            for other in _opposites(op):
                yield ast.AugAssign(target, other, value)
            for other in _scaled(value):
                yield ast.AugAssign(target, op, other)
        case ast.Name(id=name, ctx=ast.Load()):
            for other in _names_before(node, tree):
                if other != name:
                    yield ast.Name(other, ast.Load())


def _opposites(op: ast.AST) -> list[Any]:
    return [other() for other in OPPOSITE.get(type(op), ())]


def _other_calls(call: ast.Call) -> Iterator[ast.expr]:
    """Change the reduction, drop the call or an argument, exchange arguments."""
    function, arguments, keywords = call.func, call.args, call.keywords
    if isinstance(function, ast.Attribute):
        for name in REDUCTIONS.get(function.attr, ()):
            other = ast.Attribute(function.value, name, ast.Load())
            yield ast.Call(other, arguments, keywords)
    if arguments:
        yield arguments[0]
    if len(arguments) >= 2:
        first, second, *rest = arguments
        yield ast.Call(function, [second, first, *rest], keywords)
    for dropped in keywords:
        kept = [keyword for keyword in keywords if keyword is not dropped]
        yield ast.Call(function, arguments, kept)


def _other_results(value: ast.expr) -> Iterator[ast.expr]:
    """Yield a returned value negated or doubled.

    Of several values, change each in turn, replace it by each of the others, and
    exchange two.
    """
    if not isinstance(value, ast.Tuple):
        yield from _scaled(value)
        return
    elements = value.elts
    for at, element in enumerate(elements):
        for other in (*_scaled(element), *(e for e in elements if e is not element)):
            changed = [*elements[:at], other, *elements[at + 1 :]]
            yield ast.Tuple(changed, ast.Load())
        for to in range(at):
            swapped = list(elements)
            swapped[at], swapped[to] = swapped[to], swapped[at]
            yield ast.Tuple(swapped, ast.Load())


def _scaled(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.Call) and _called(value) in ZEROS:
        return  # a multiple of zeros is zeros
    yield ast.UnaryOp(ast.USub(), value)
    yield ast.BinOp(ast.Constant(2), ast.Mult(), value)


def _names_before(node: ast.Name, tree: ast.Module) -> list[str]:
    """Return arguments and variables set above that may stand for each other."""
    function = _function(tree)
    names = [argument.arg for argument in function.args.args]
    names += [
        assigned.id
        for assigned in ast.walk(function)
        if isinstance(assigned, ast.Name)
        and isinstance(assigned.ctx, ast.Store)
        and assigned.lineno < node.lineno
    ]
    usable = [n for n in dict.fromkeys(names) if n not in ("xp", "saved", "wanted")]
    return usable if node.id in usable else []
