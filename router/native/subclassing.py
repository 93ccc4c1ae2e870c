"""Marks compiled classes that plain Python derives from: `@mypyc_attr(allow_interpreted_subclasses=True)`.

The mark is for the compiler alone. What is not compiled does without the package that it comes from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["mypyc_attr"]

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**settings: object) -> object:
        """Mark nothing."""
        return lambda marked: marked
