"""The native cores' build: what compiles is in the wheel; what doesn't is left to its pure Python twin, said aloud."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from router.native import IS_WANTED, core

ROOT = Path(__file__).parents[2]
GOOD = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "good", .m_size = 0};
PyMODINIT_FUNC PyInit_good(void) { return PyModule_Create(&module); }
"""

pytestmark = pytest.mark.skipif(
    not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists() or not shutil.which("cc"),
    reason="needs a C compiler and Python's headers",
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of the same build, with one core that compiles."""
    for name in ("pyproject.toml", "native_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for package in ("router", "replica", "loadtest"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "router/native").mkdir()
    (tmp_path / "router/native/good.c").write_text(GOOD, encoding="utf-8")
    return tmp_path


def build(project: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # Without isolation nothing is fetched: hatchling is one of the tests' own packages.
    script = "import hatchling.build as b; print(b.build_wheel('dist'))"
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=project,
        # What the tests themselves run without (`make unit-pure`) says nothing of what is built.
        env={**os.environ, "WARMROUTE_NATIVE": "auto", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def cores(project: Path) -> list[str]:
    (wheel,) = (project / "dist").glob("*.whl")
    return [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


def test_wheel_holds_what_compiles(project: Path) -> None:
    """The wheel of a core is one of this platform, and has the module beside its source."""
    assert build(project).returncode == 0
    assert cores(project) == [f"router/native/good{sysconfig.get_config_var('EXT_SUFFIX')}"]
    assert "none-any" not in next((project / "dist").iterdir()).name


def test_broken_core_is_left_out(project: Path) -> None:
    """What does not compile is named, with the compiler's words, and the rest is built."""
    (project / "router/native/bad.c").write_text("#error no such luck\n", encoding="utf-8")
    done = build(project)
    assert done.returncode == 0
    assert len(cores(project)) == 1
    assert "bad.c does not compile here" in done.stdout + done.stderr
    assert "no such luck" in done.stdout + done.stderr


def test_broken_core_is_an_error_where_required(project: Path) -> None:
    """Images want every core: a failed build ends theirs."""
    (project / "router/native/bad.c").write_text("#error no such luck\n", encoding="utf-8")
    done = build(project, WARMROUTE_NATIVE="require")
    assert done.returncode != 0
    assert "no such luck" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "environment", [{"WARMROUTE_NATIVE": "no"}, {"CC": "/nonexistent/cc"}], ids=["unwanted", "no-cc"]
)
def test_wheel_without_cores(project: Path, environment: dict[str, str]) -> None:
    """Not wanted, or no compiler: a pure wheel for every platform."""
    assert build(project, **environment).returncode == 0
    assert cores(project) == []
    assert next((project / "dist").iterdir()).name.endswith("-py3-none-any.whl")


def test_core_that_is_not_built_is_none() -> None:
    """Whoever asks for a core that was not built falls back to Python."""
    assert core("no_such_core") is None


@pytest.mark.skipif(not IS_WANTED, reason="native cores are not wanted")
def test_every_core_is_built_here() -> None:
    """Where there is a compiler the tests run with every core, so that none is skipped in silence."""
    assert [source.stem for source in (ROOT / "router/native").glob("*.c") if core(source.stem) is None] == []
