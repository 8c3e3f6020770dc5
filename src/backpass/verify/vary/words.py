"""Read the words that an option may have from the source of the functions that use it.

A word is a string with which the option is compared, a key of a dictionary that it
looks up, a case of a ``match``, or an argument of its ``Literal`` annotation.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

DEEPEST = 3  # calls of helpers that pass the option on
ADJUSTED = frozenset("lower upper strip casefold".split())  # methods of the option


def words_of(function: Callable | None, name: str) -> tuple[str, ...]:
    """Return the words that a parameter of a function may have; none if the source is
    not available."""
    return tuple(dict.fromkeys(_words(function, name, DEEPEST)))


def _words(function: Any, name: str, deeper: int) -> Iterator[str]:
    try:
        function = inspect.unwrap(function)
        known = _names_in(function)
        tree = ast.parse(_source(function))
    except (OSError, TypeError, ValueError, SyntaxError, AttributeError):
        return
    known |= _assigned(tree, known)
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            yield from _compared(node, name, known)
        elif isinstance(node, ast.arg) and node.arg == name and node.annotation:
            yield from _literal(node.annotation, known)
        elif isinstance(node, ast.Subscript) and _is_option(node.slice, name):
            yield from _strings(node.value, known)
        elif isinstance(node, ast.Match) and _is_option(node.subject, name):
            patterns = [of for case in node.cases for of in ast.walk(case.pattern)]
            values = [of.value for of in patterns if isinstance(of, ast.MatchValue)]
            yield from _strings(ast.Tuple(values), known)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr == "get":
                if node.args and _is_option(node.args[0], name):
                    yield from _strings(node.func.value, known)
            if deeper:
                yield from _in_a_helper(node, name, known, deeper - 1)


def _source(function: Any) -> str:
    """Return the source of a function, or of the expression that contains a lambda."""
    text = textwrap.dedent(inspect.getsource(function))
    try:
        ast.parse(text)
    except SyntaxError:
        start = text.index("lambda")
        for stop in range(len(text), start, -1):
            try:
                ast.parse(text[start:stop], mode="eval")
            except SyntaxError:
                continue
            return text[start:stop]
    return text


def _names_in(function: Any) -> dict[str, Any]:
    """Return the values of the names that a function sees outside of itself."""
    plain = getattr(function, "__func__", function)
    cells = zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True)
    found = {**plain.__globals__, **{n: c.cell_contents for n, c in cells if _full(c)}}
    if (owner := getattr(function, "__self__", None)) is not None:
        found[plain.__code__.co_varnames[0]] = owner
    return found


def _full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _assigned(tree: ast.AST, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the strings of each dictionary, list, tuple, or set to which a name is
    assigned in a function."""
    return {
        target.id: found
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and (found := [*_strings(node.value, known)])
    }


def _is_option(node: ast.AST, name: str) -> bool:
    """Whether an expression is the option, perhaps in lower case."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value if node.func.attr in ADJUSTED else node
    return isinstance(node, ast.Name) and node.id == name


def _compared(node: ast.Compare, name: str, known: Mapping[str, Any]) -> Iterator[str]:
    sides = [node.left, *node.comparators]
    if any(_is_option(side, name) for side in sides):
        for side in sides:
            yield from _strings(side, known)


def _strings(node: ast.AST, known: Mapping[str, Any]) -> Iterator[str]:
    """Yield a string, or those in a container that is written out or has a name."""
    if isinstance(node, ast.Constant):
        yield from (node.value,) if isinstance(node.value, str) else ()
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for each in node.elts:
            yield from _strings(each, known)
    elif isinstance(node, ast.Dict):
        for key in node.keys:
            yield from _strings(key, known) if key else ()
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "dict":
            yield from (keyword.arg for keyword in node.keywords if keyword.arg)
    elif isinstance(found := _value(node, known), Mapping | list | tuple):
        yield from (key for key in found if isinstance(key, str))
    elif isinstance(found, set | frozenset):
        yield from sorted(key for key in found if isinstance(key, str))


def _value(node: ast.AST, known: Mapping[str, Any]) -> Any:
    """Return the value of a name, or of an attribute of one, as in ``self.TABLE``."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, known), node.attr, None)
    return None


def _literal(node: ast.AST, known: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words of ``Literal["a", "b"]``, also within a union or by a name."""
    for of in ast.walk(node):
        if isinstance(of, ast.Subscript) and "Literal" in ast.unparse(of.value):
            yield from _strings(of.slice, known)
        elif "Literal" in str(value := _value(of, known)):
            yield from (word for word in get_args(value) if isinstance(word, str))


def _in_a_helper(
    call: ast.Call, name: str, known: Mapping[str, Any], deeper: int
) -> Iterator[str]:
    """Yield the words of the option in a function to which it is passed."""
    function = _value(call.func, known)
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        return
    try:
        parameters = [*inspect.signature(function).parameters]
    except (TypeError, ValueError):
        return
    passed = [*zip(parameters, call.args, strict=False)]
    passed += [(keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg]
    for parameter, value in passed:
        if _is_option(value, name):
            yield from _words(function, parameter, deeper)
