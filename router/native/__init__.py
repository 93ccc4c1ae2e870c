"""The native cores: C where a request's or an event's path is counted in microseconds, each beside a pure Python twin.

A core `NAME.c` is the extension module `router.native.NAME` (`native_build.py` compiles it with the wheel). Whoever has
a twin asks for it here and falls back to Python where it is not built; tests hold the two equal.
"""

import importlib
import os
from types import ModuleType

#: Read once, at import: `WARMROUTE_NATIVE=no` keeps to pure Python, to compare or to rule a core out.
IS_WANTED = os.environ.get("WARMROUTE_NATIVE", "auto") != "no"


def core(name: str) -> ModuleType | None:
    """The core of this name, or None where it was not built or is not wanted."""
    if not IS_WANTED:
        return None
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        return None
