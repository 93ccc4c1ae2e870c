"""Builds the native cores (`router/native/*.c`) with the wheel, where a C compiler and Python's headers are there.

Each file is one extension module of its name. With `WARMROUTE_COMPILED=yes` one more is made of the Python modules that
`router/native/compiled.py` names: mypyc translates them to C (an experiment: what is compiled checks types while it
runs, and not all of the modules keep to theirs yet). A core that can't be built is left out, and its pure Python twin
does the work: the wheel says so while it is built. `WARMROUTE_NATIVE=require` makes a failed build an error (images are
built so), `WARMROUTE_NATIVE=no` builds none.
"""

import json
import os
import runpy
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = Path("router/native")
# -O3 inlines the probing loops. No -march: a wheel must run on another machine than the one that built it.
_FLAGS = ("-O3", "-std=c11", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter")
# What mypyc writes is no longer for people: no warnings. It counts on integers that wrap, as all of CPython does.
_TRANSLATED_FLAGS = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-fwrapv", "-DNDEBUG", "-w")


class NativeBuildHook(BuildHookInterface[Any]):
    """Compiles beside the sources, so that an editable installation finds the modules too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build every core and add it to the wheel.

        Raises:
            RuntimeError: `WARMROUTE_NATIVE=require` and a core did not compile; the compiler's words are in it.
        """
        wanted = os.environ.get("WARMROUTE_NATIVE", "auto")
        if self.target_name != "wheel" or wanted == "no":
            return
        root = Path(self.root)
        for source in sorted((root / _FOLDER).glob("*.c")):
            module = _module(source)
            self._note(source.name, module, _compile([source], module, _FLAGS), build_data)
        compiled = root / _FOLDER / "compiled.py"
        if compiled.exists() and os.environ.get("WARMROUTE_COMPILED") == "yes":
            table = runpy.run_path(str(compiled))
            for former in (root / _FOLDER).glob(f"{table['GROUP']}-*"):
                former.unlink()  # of other sources
            module = root / _FOLDER / table["file_name"](root)
            self._note("the path of a request", module, _translate(root, table["MODULES"], module), build_data)

    def _note(self, what: str, module: Path, problem: str | None, build_data: dict[str, Any]) -> None:
        """Put a module into the wheel, or say why it is not there."""
        if problem is None:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["artifacts"].append(f"/{_FOLDER}/{module.name}")
        elif os.environ.get("WARMROUTE_NATIVE") == "require":
            raise RuntimeError(f"{what} does not compile:\n{problem}")
        else:
            self.app.display_warning(f"{what} does not compile here, pure Python does its work:\n{problem}")


def _module(source: Path) -> Path:
    """The extension module's file, in the source's folder."""
    return source.with_name(source.stem + str(sysconfig.get_config_var("EXT_SUFFIX")))


def _compile(sources: Sequence[Path], module: Path, flags: Sequence[str]) -> str | None:
    """Compile one extension module. Returns what went wrong, or None."""
    compiler = shlex.split(os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc"))
    include = sysconfig.get_paths()["include"]
    module.unlink(missing_ok=True)  # not an earlier build's, when this one fails
    command = [
        *compiler,
        *flags,
        *shlex.split(os.environ.get("CFLAGS", "")),
        f"-I{include}",
        *map(str, sources),
        "-o",
        str(module),
    ]
    return _run(command)


def _translate(root: Path, modules: Sequence[str], module: Path) -> str | None:
    """Make one extension module of Python modules. Returns what went wrong, or None."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told.json"
        problem = _run([sys.executable, str(root / "native_mypyc.py"), str(root), folder, str(told), *modules])
        if problem is not None:
            return problem
        needed = json.loads(told.read_text(encoding="utf-8"))
        include = [f"-I{path}" for path in needed["include"]]
        return _compile([Path(path) for path in needed["sources"]], module, (*_TRANSLATED_FLAGS, *include))


def _run(command: Sequence[str]) -> str | None:
    """Run a command to its end. Returns what it complains of when it fails, or None."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    return None if done.returncode == 0 else f"{shlex.join(command)}\n{done.stderr.strip()}"
