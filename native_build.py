"""Builds the native cores (`router/native/*.c`) with the wheel, where a C compiler and Python's headers are there.

Each file is one extension module of its name. A core that can't be built is left out, and its pure Python twin does the
work: the wheel says so while it is built, and `warmroute --version` afterwards. `WARMROUTE_NATIVE=require` makes a
failed build an error (images are built so), `WARMROUTE_NATIVE=no` builds none.
"""

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = Path("router/native")
# -O3 inlines the probing loops. No -march: a wheel must run on another machine than the one that built it.
_FLAGS = ("-O3", "-std=c11", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter")


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
        for source in sorted((Path(self.root) / _FOLDER).glob("*.c")):
            problem = _compile(source)
            if problem is None:
                build_data["pure_python"] = False
                build_data["infer_tag"] = True
                build_data["artifacts"].append(f"/{_FOLDER}/{_module(source).name}")
            elif wanted == "require":
                raise RuntimeError(f"{source.name} does not compile:\n{problem}")
            else:
                self.app.display_warning(f"{source.name} does not compile here, pure Python does its work:\n{problem}")


def _module(source: Path) -> Path:
    """The extension module's file, in the source's folder."""
    return source.with_name(source.stem + str(sysconfig.get_config_var("EXT_SUFFIX")))


def _compile(source: Path) -> str | None:
    """Compile one core. Returns what went wrong, or None."""
    compiler = shlex.split(os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc"))
    include = sysconfig.get_paths()["include"]
    module = _module(source)
    module.unlink(missing_ok=True)  # not an earlier build's, when this one fails
    command = [
        *compiler,
        *_FLAGS,
        *shlex.split(os.environ.get("CFLAGS", "")),
        f"-I{include}",
        str(source),
        "-o",
        str(module),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{compiler[0]}: {error.strerror}"
    return None if done.returncode == 0 else f"{shlex.join(command)}\n{done.stderr.strip()}"
