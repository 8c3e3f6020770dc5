"""Leave out the tests that the book's pages run.

The build of the book runs the check of each claim, and fails if a verdict is wrong. A test marked ``on_pages`` runs the
same check, so it runs only if ``-k`` or its name chooses it, or if everything is proved.
"""

import pytest

from proofs import chosen, proving


class Plugin:
    """Deselects the tests that are marked ``on_pages``."""

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if chosen(config) or proving() == "all":
            return
        kept: dict[bool, list[pytest.Item]] = {False: [], True: []}
        for item in items:
            kept[not item.get_closest_marker("on_pages")].append(item)
        config.hook.pytest_deselected(items=kept[False])
        items[:] = kept[True]
