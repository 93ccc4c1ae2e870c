"""The compiled modules: made of the sources beside them, or not used at all."""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

import pytest

from router.native.compiled import MODULES, CompiledFinder, file_name, source

ROOT = Path(__file__).parents[2]
IS_COMPILED = os.environ.get("WARMROUTE_COMPILED") == "yes" and os.environ.get("WARMROUTE_NATIVE", "auto") != "no"
HAS_COMPILER = (Path(sysconfig.get_paths()["include"]) / "Python.h").exists() and bool(shutil.which("cc"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The compiled modules' sources, and a file of the name that their extension module has."""
    for module in MODULES:
        copy = source(tmp_path, module)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source(ROOT, module), copy)
    (tmp_path / "router/native").mkdir()
    (tmp_path / "router/native" / file_name(tmp_path)).touch()
    return tmp_path


def test_modules_are_found_in_what_was_made_of_them(tree: Path) -> None:
    """The extension module of these very sources is where they are loaded from."""
    finder = CompiledFinder(tree)
    for module in MODULES:
        spec = finder.find_spec(module)
        assert spec is not None
        assert isinstance(spec.loader, ExtensionFileLoader)
        assert spec.origin == str(tree / "router/native" / file_name(ROOT))


@pytest.mark.parametrize("module", [MODULES[0], MODULES[-1]])
def test_an_edited_source_leaves_all_to_python(tree: Path, module: str) -> None:
    """They call one another by what the compiler saw, so one edited file is enough."""
    source(tree, module).write_bytes(source(tree, module).read_bytes() + b"\n# edited\n")
    finder = CompiledFinder(tree)
    assert [finder.find_spec(each) for each in MODULES] == [None] * len(MODULES)


def test_other_modules_are_not_its_business(tree: Path) -> None:
    """What is not compiled is found as ever."""
    assert CompiledFinder(tree).find_spec("router.config") is None


def test_no_two_modules_end_alike() -> None:
    """The last word of a module's name is the name of its entry point."""
    assert len({module.rpartition(".")[2] for module in MODULES}) == len(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_no_compiled_class_has_a_base_from_a_package(module: str) -> None:
    """The compiler sees the project and the standard library alone: a base that it can't see crashes the process."""
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    foreign = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        and str(node.module).partition(".")[0] not in {"router", *sys.stdlib_module_names}
        for alias in node.names
    }
    bases = [base for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases]
    assert not foreign & {ast.unparse(base).partition("[")[0] for base in bases}


@pytest.mark.skipif(not HAS_COMPILER or not IS_COMPILED, reason="needs WARMROUTE_COMPILED=yes, as it was built with")
@pytest.mark.parametrize("module", MODULES)
def test_the_tests_run_what_is_compiled(module: str) -> None:
    """Where there is a compiler it is the compiled modules that are tested here. If not: `make native`."""
    assert isinstance(importlib.import_module(module).__loader__, ExtensionFileLoader)


def test_pure_python_can_be_had() -> None:
    """`WARMROUTE_NATIVE=no` runs the sources."""
    script = "import router.proxy.forwarding as module; print(module.__file__)"
    environment = {**os.environ, "WARMROUTE_NATIVE": "no"}
    told = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == str(ROOT / "router/proxy/forwarding.py")


@pytest.mark.skipif(not HAS_COMPILER, reason="needs a C compiler and Python's headers")
def test_a_wheel_holds_what_was_compiled(tmp_path: Path) -> None:
    """The modules of a project's own table are compiled into its wheel, and run from there."""
    for name in ("pyproject.toml", "native_build.py", "native_mypyc.py", "README.md", "LICENSE", "router/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for package in ("replica", "loadtest", "router/native"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    table = (ROOT / "router/native/compiled.py").read_text(encoding="utf-8")
    begin, end = table.index("MODULES = ("), table.index('"""What is compiled.')
    table = table[:begin] + 'MODULES = ("router.adding", "router.twice")\n' + table[end:]
    (tmp_path / "router/native/compiled.py").write_text(table, encoding="utf-8")
    (tmp_path / "router/adding.py").write_text("def add(one: int, other: int) -> int:\n    return one + other\n")
    twice = "from router.adding import add\n\n\ndef twice(number: int) -> int:\n    return add(number, number)\n"
    (tmp_path / "router/twice.py").write_text(twice)
    build = "import hatchling.build as b; b.build_wheel('dist')"
    environment = {**os.environ, "WARMROUTE_NATIVE": "require", "WARMROUTE_COMPILED": "yes"}
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, env=environment, check=True, timeout=300)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    script = "import router.twice as module; print(type(module.__loader__).__name__, module.twice(21))"
    environment = {**os.environ, "WARMROUTE_NATIVE": "auto", "PYTHONPATH": str(tmp_path / "installed")}
    told = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path / "installed",
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == ["ExtensionFileLoader", "42"]
