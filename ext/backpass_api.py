"""The directive ``{api} package``: a section for the package and each of its modules, from their docstrings.

The entries are Sphinx's autodoc. A module that is added to the package appears by itself.
"""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util.docutils import SphinxDirective


def modules(name: str) -> list[str]:
    """The module; and the modules that a package offers, or, when it does not say what it offers, all public modules in
    it and its folders."""
    module = import_module(name)
    if not hasattr(module, "__path__"):
        return [name]
    if hasattr(module, "__all__"):
        offered = [each for each in module.__all__ if isinstance(getattr(module, each, module), ModuleType)]
        return [name, *(inner for each in offered for inner in modules(f"{name}.{each}"))]
    inside = pkgutil.walk_packages(module.__path__, prefix=f"{name}.")
    return [name, *(m.name for m in inside if not m.name.rpartition(".")[2].startswith("_"))]


class Api(SphinxDirective):
    """``{api} backpass.ops``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        sections = []
        for name in modules(self.arguments[0]):
            section = nodes.section(ids=[f"module-{name.replace('.', '-').replace('_', '-')}"], names=[name])
            section += nodes.title("", "", nodes.literal(text=name))
            text = ["```{eval-rst}", f".. automodule:: {name}", "```"]
            self.state.nested_parse(text, self.content_offset, section)
            sections.append(section)
        return sections


def skip_tuple_fields(
    app: Sphinx, what: str, name: str, member: object, skip: bool, options: dict
) -> bool | None:
    """Leave out the fields of named tuples, whose docstring says only which number they have."""
    return True if (getattr(member, "__doc__", None) or "").startswith("Alias for field number") else None


def tidy(app: Sphinx, what: str, name: str, member: object, options: dict, lines: list[str]) -> None:
    """Make reStructuredText of a docstring that was written to be read in an editor.

    An indented block is code, unless a directive opened it; single backticks are code too; and outside of
    both, stars, bars and backslashes mean nothing.
    """
    out, opener = [], ""
    for line in lines:
        if line.startswith(" "):
            starts_block = out and not out[-1].strip()
            if starts_block and opener and not opener.startswith("..") and not opener.endswith("::"):
                out += ["::", ""]
                opener = "::"
            out.append(line)
            continue
        opener = line or opener
        if not line.startswith(".."):
            parts = re.split(r"(:\w+:`[^`]+`|`+[^`]+`+)", line)
            parts[::2] = [re.sub(r"(?<!\*)\*(?!\*)|[|\\]", r"\\\g<0>", part) for part in parts[::2]]
            parts[1::2] = [part if part[0] == ":" else f"``{part.strip('`')}``" for part in parts[1::2]]
            line = "".join(parts)
        out.append(line)
    lines[:] = out


def do_without_triton(app: Sphinx, config: Config) -> None:
    """Triton exists for Linux only; the book can be built elsewhere."""
    if find_spec("triton") is None:
        config.autodoc_mock_imports = ["triton"]


def setup(app: Sphinx) -> dict:
    app.connect("config-inited", do_without_triton)
    app.add_directive("api", Api)
    app.connect("autodoc-process-docstring", tidy)
    app.connect("autodoc-skip-member", skip_tuple_fields)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
