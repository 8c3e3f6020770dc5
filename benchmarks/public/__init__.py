"""Programs of public projects that launch Triton kernels, each with a reference by PyTorch.

A module of this folder holds the programs of one project. A program is a function of a ``Draw`` that returns a
``Case``: how the project's function is called, the same computation by PyTorch, and small inputs. The code of a
project is imported from the installed package.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

DTYPES = ("float32", "bfloat16")
PROJECTS = (
    "liger",
    "fla",
    "tutorials",
    "unsloth",
    "mamba",
    "flash_attention",
    "cut_cross_entropy",
    "attorch",
    "others",
)


class Input(NamedTuple):
    """An argument in float64, whose values the tested dtype has."""

    value: torch.Tensor
    differentiable: bool
    dtype: torch.dtype  # in which the program receives it


@dataclass
class Case:
    """A call of a program, a function of PyTorch that computes the same outputs, and the inputs of both.

    The parameters of the reference name the inputs. An output that is None, or has integers, is not compared.
    """

    call: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: tuple[Input, ...]
    given: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The inputs' names."""
        return [*(self.given or inspect.signature(self.reference).parameters)]


class Draw:
    """Draws the inputs of one program in one dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.random = torch.Generator().manual_seed(0)

    def _numbers(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=self.random, dtype=torch.float64)

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> Input:
        """Return normally distributed numbers, with a gradient."""
        return self.of(mean + scale * self._numbers(shape))

    def fixed(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> Input:
        """Return normally distributed numbers, without a gradient."""
        return self.of(mean + scale * self._numbers(shape), differentiable=False)

    def of(self, x: torch.Tensor, differentiable: bool = True, dtype: torch.dtype | None = None) -> Input:
        """Return an input with these numbers, rounded to its dtype. Integers stay as they are."""
        if not (x.is_floating_point() or x.is_complex()):
            return Input(x, False, x.dtype)
        dtype = dtype or self.dtype
        rounded = x.to(dtype).double() if x.is_floating_point() else x
        return Input(rounded, differentiable, dtype if x.is_floating_point() else x.dtype)

    def below(self, n: int, *shape: int, least: int = 0) -> Input:
        """Return integers from ``least`` to n - 1."""
        return self.of(torch.randint(least, n, shape, generator=self.random))

    def case(self, call: Callable[..., Any], reference: Callable[..., Any], *inputs: Input) -> Case:
        """Return the case."""
        return Case(call, reference, inputs)


@dataclass
class Project:
    """A project: its package, the name of its distribution, and its programs.

    ``bare`` are packages whose own module is not executed when one of their modules is imported, because it needs
    extensions in CUDA or packages that the kernels do not. ``facts`` are what other modules import from them.
    """

    package: str
    distribution: str
    bare: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    programs: dict[str, Callable[[Draw], Case]] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    dtypes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    capabilities: dict[str, tuple[int, int]] = field(default_factory=dict)

    def program(
        self, function: str, *dtypes: str, capability: tuple[int, int] = (8, 0)
    ) -> Callable[[Callable[[Draw], Case]], Callable[[Draw], Case]]:
        """Register a program under the name of its function, given the function that it calls in the package, the
        dtypes in which it runs, and the compute capability that it needs."""

        def added(create: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
            name = create.__name__.removesuffix("_")
            self.programs[name], self.functions[name] = create, function
            self.dtypes[name] = dtypes or DTYPES
            self.capabilities[name] = capability
            return create

        return added

    @property
    def installed(self) -> bool:
        """Whether the package can be imported."""
        return self.root is not None

    @property
    def root(self) -> Path | None:
        """The folder of the package, None if it is not installed."""
        return _root(self.package)

    @property
    def version(self) -> str:
        """The version of the package: of the distribution, or as its own file says."""
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            return _version_of(self.root) if self.root else ""

    def get(self, function: str) -> Any:
        """Return a function of the package, such as "ops.rms_norm:LigerRMSNormFunction"."""
        for name in self.bare:
            if name not in sys.modules:
                top, *rest = name.split(".")
                path = _root(top).joinpath(*rest)  # type: ignore[union-attr]
                spec = ModuleSpec(name, None, is_package=True)
                module = module_from_spec(spec)
                module.__path__ = [str(path)]
                vars(module).update(self.facts)
                module.__version__ = self.version  # type: ignore[attr-defined]
                sys.modules[name] = module
        module, _, names = function.partition(":")
        found: Any = importlib.import_module(f"{self.package}.{module}".removesuffix("."))
        for part in names.split("."):
            found = getattr(found, part)
        return found


def _root(package: str) -> Path | None:
    if package in sys.modules:
        places = sys.modules[package].__path__
    else:
        spec = find_spec(package)
        places = (spec and spec.submodule_search_locations) or []
    return Path(next(iter(places))) if places else None


def _version_of(root: Path) -> str:
    """Return the version that a package's files, or the project's file beside it, state."""
    files = [root / name for name in ("__init__.py", "version.py", "_version.py")]
    files += [folder / "pyproject.toml" for folder in (root.parent, root.parent.parent)]
    for path in files:
        text = path.read_text() if path.exists() else ""
        if found := re.search(r'^(?:__version__|version) = ["\']([^"\']+)', text, re.MULTILINE):
            return found[1]
    return ""


def definitions(path: Path, also: Iterable[str] = ()) -> dict[str, Any]:
    """Return what a script defines, without running it: its imports, functions, and classes, and the variables with
    names in capitals or in ``also``."""
    tree = ast.parse(path.read_text())
    kept = [node for node in tree.body if isinstance(node, _DEFINITIONS) or _assigns(node, {*also})]
    module = ModuleType(path.stem.replace("-", "_"))
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(ast.Module(kept, []), str(path), "exec"), vars(module))
    return vars(module)


_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def _assigns(node: ast.stmt, also: set[str]) -> bool:
    if isinstance(node, ast.If):  # a choice between values
        return all(_assigns(own, also) or isinstance(own, ast.If) for own in (*node.body, *node.orelse))
    if isinstance(node, ast.Try):  # of an import
        return all(isinstance(own, _DEFINITIONS) or _assigns(own, also) for own in node.body)
    if not isinstance(node, ast.Assign):
        return False
    names = [target.id for target in node.targets if isinstance(target, ast.Name)]
    return any((name.isupper() and len(name) > 1) or name in also for name in names)


def projects() -> dict[str, Project]:
    """Return the projects by the names of their modules."""
    found = {}
    for name in PROJECTS:
        module = importlib.import_module(f"{__name__}.{name}")
        found |= {
            project.package: project for project in vars(module).values() if isinstance(project, Project)
        }
    return found
