"""Modules of a request's path as machine code: mypyc compiles their very sources with the wheel, where asked to.

An experiment (`WARMROUTE_COMPILED=yes` while it is built): compiled modules check types while they run, and some tests
fail where a module does not keep to its own yet. Without it plain Python and the cores in C do the work.

All are in one extension module (`native_build.py` makes it), whose name holds a digest of their sources. So a copy that
was compiled from other sources than those beside it is never used: whoever edits one of these files runs pure Python
until the next build (`make native`), and `WARMROUTE_NATIVE=no` always.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

GROUP = "warmroute__mypyc"
"""The module that mypyc makes of all of them."""
MODULES = (
    "router.fleet.facts",
    "router.fleet.fleet",
    "router.fleet.ledger",
    "router.fleet.replica",
    "router.fleet.vouching",
    "router.index.announced",
    "router.index.approximate",
    "router.index.expected",
    "router.index.matches",
    "router.index.prefix_index",
    "router.index.sampling",
    "router.placement",
    "router.proving",
    "router.proxy.accounts",
    "router.proxy.ahead",
    "router.proxy.answer_head",
    "router.proxy.client_state",
    "router.proxy.deadlines",
    "router.proxy.door",
    "router.proxy.engine_connection",
    "router.proxy.half_close",
    "router.proxy.hop_by_hop",
    "router.proxy.incoming_body",
    "router.proxy.incoming_head",
    "router.proxy.pool",
    "router.proxy.prompts",
    "router.proxy.replies",
    "router.proxy.request_head",
    "router.proxy.usage",
    "router.request.memo",
    "router.request.prompt",
    "router.request.token_cache",
    "router.scheduling.affinity",
    "router.scheduling.candidate",
    "router.scheduling.decision",
    "router.scheduling.filters",
    "router.scheduling.pickers",
    "router.scheduling.policies",
    "router.scheduling.ring",
    "router.scheduling.scorers",
    "router.scheduling.shadow",
    "router.scheduling.wishes",
    "router.survey",
    "router.telemetry.access_log",
    "router.telemetry.decisions",
    "router.telemetry.instruments",
    "router.telemetry.line_writer",
    "router.telemetry.metrics",
    "router.telemetry.recorder",
    "router.telemetry.replica_traffic",
    "router.telemetry.reuse_ledger",
    "router.telemetry.seen_blocks",
    "router.telemetry.totals",
)
"""What is compiled. No two may end with the same word, which names their beginning in the extension module."""


def source(root: Path, module: str) -> Path:
    """Return a module's file in a tree."""
    return root.joinpath(*module.split(".")).with_suffix(".py")


def file_name(root: Path) -> str:
    """Return the name that the extension module of a tree's sources has.

    Raises:
        OSError: One of them can't be read.
    """
    digest = hashlib.sha256()
    for module in MODULES:
        digest.update(source(root, module).read_bytes())
    return f"{GROUP}-{digest.hexdigest()[:16]}{sysconfig.get_config_var('EXT_SUFFIX')}"


class CompiledFinder:
    """Finds the modules of `MODULES` in the extension module that was made of these sources, if it is there."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._modules = frozenset((*MODULES, GROUP))
        self._file: str | None = None
        self._looked = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is, for the import system."""
        if fullname not in self._modules:
            return None
        if not self._looked:
            self._looked = True
            self._file = self._find()
        if self._file is None:
            return None
        return spec_from_file_location(fullname, self._file, loader=ExtensionFileLoader(fullname, self._file))

    def _find(self) -> str | None:
        try:
            file = self._root / "router/native" / file_name(self._root)
        except OSError:
            return None
        return str(file) if file.exists() else None


def prefer_compiled() -> None:
    """Have imports of `MODULES` find what was compiled, unless the environment says no."""
    if os.environ.get("WARMROUTE_NATIVE", "auto") != "no":
        sys.meta_path.insert(0, CompiledFinder(Path(__file__).parents[2]))
