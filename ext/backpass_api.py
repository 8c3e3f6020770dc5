"""The directive ``{api} package``: a section for each of its modules, written from their docstrings.

The entries are Sphinx's autodoc. A module that is added to the package appears by itself.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def modules(name: str) -> list[str]:
    """The module, and when it is a package the public ones in it."""
    module = import_module(name)
    inside = pkgutil.iter_modules(getattr(module, "__path__", []), prefix=f"{name}.")
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


def setup(app: Sphinx) -> dict:
    app.add_directive("api", Api)
    app.connect("autodoc-skip-member", skip_tuple_fields)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
