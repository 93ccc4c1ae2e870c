"""Translates the modules of a request's path to C: `python native_mypyc.py ROOT FOLDER TOLD MODULE ...`.

A process of its own, since mypyc ends its process when it meets an error. Writes the C files below FOLDER, and to
the file TOLD, as JSON, what a compiler needs: `sources`, `include`.
"""

import json
import os
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path

GROUP = "warmroute"
# mypy sees the project alone, as a build has no other packages: what it can't see is of any type.
_MYPY = ("--config-file=", "--ignore-missing-imports", "--python-version=3.11", "--no-incremental")


def main() -> None:
    """Translate."""
    root, folder, told, *modules = sys.argv[1:]
    from mypyc.build import mypycify

    os.chdir(root)
    files = [f"{module.replace('.', '/')}.py" for module in modules]
    with redirect_stdout(sys.stderr):
        extensions = mypycify([*_MYPY, *files], target_dir=folder, group_name=GROUP)
    by_name = {extension.name: extension for extension in extensions}
    group = by_name.pop(f"{GROUP}__mypyc")
    beginnings = [
        Path(shim).read_text(encoding="utf-8") for extension in by_name.values() for shim in extension.sources
    ]
    one = Path(folder) / "beginnings.c"
    # Each file's second entry point is for compilers that export one by the package's name.
    one.write_text("".join(re.sub(r"(?m)^PyMODINIT_FUNC PyInit___init__.*$", "", text) for text in beginnings))
    needed = {"sources": [*group.sources, str(one)], "include": group.include_dirs}
    Path(told).write_text(json.dumps(needed), encoding="utf-8")


main()
