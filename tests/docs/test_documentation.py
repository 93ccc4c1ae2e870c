"""The documentation is true: its tables are the code's, its links lead somewhere, and the house rules hold."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from router.config import RouterConfig
from router.config_file import parse
from router.tools.reference import MARKED, TABLES, config_rows, rewrite

ROOT = Path(__file__).parents[2]
DOCUMENTS = ROOT / "docs"
TRACKED = subprocess.run(
    ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()


def test_the_documents_tables_are_the_code_s() -> None:
    """Every option, metric, endpoint, error and alert is documented as it is (`make docs` writes them)."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(DOCUMENTS.glob("*.md"))]
    assert {found[2] for text in texts for found in MARKED.finditer(text)} == set(TABLES)
    assert [rewrite(text) for text in texts] == texts


def test_every_configuration_key_says_what_it_means() -> None:
    """An operator never has to read the code for a key."""
    assert [path for path, _, meaning in config_rows(RouterConfig) if not meaning] == []


@pytest.mark.parametrize("name", ["README.md", "docs/tenants.md"])
def test_the_documents_configurations_are_valid(name: str, tmp_path: Path) -> None:
    """What a reader copies is taken by the router."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("/etc/warmroute/", f"{tmp_path}/")
    for file in re.findall(rf"{tmp_path}/([a-z-]+)", text):
        (tmp_path / file).write_text("sixteen-characters-or-more")
    least = {"listen": "127.0.0.1:8080", "models": [{"name": "m"}], "replicas": [{"url": "http://10.0.0.11:8000"}]}
    examples = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert examples
    for example in examples:
        parse({**least, **yaml.safe_load(example)}, {})


def test_every_error_code_has_one_meaning() -> None:
    """A client that branches on a code knows what happened."""
    codes = re.findall(r"^\| `([a-z_]+)` \| \d{3} \|", TABLES["errors"](), re.MULTILINE)
    assert len(set(codes)) == len(codes)


def test_every_error_code_is_documented() -> None:
    """Also those that are defined beside what raises them, whatever was imported before the table was written."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "router").rglob("*.py"))
    codes = {code for text in sources for code in re.findall(r'^    code = "([a-z_]+)"', text, re.MULTILINE)}
    assert len(codes) > 20
    text = (DOCUMENTS / "client-api.md").read_text(encoding="utf-8")
    assert [code for code in sorted(codes) if f"| `{code}` |" not in text] == []


def test_every_header_that_the_router_adds_is_documented() -> None:
    """Headers that begin with x-warmroute- in the data plane are where clients look."""
    added = set()
    for path in (ROOT / "router" / "proxy").glob("*.py"):
        added |= set(re.findall(r"x-warmroute-[a-z-]+[a-z]", path.read_text(encoding="utf-8")))
    assert added
    text = (DOCUMENTS / "client-api.md").read_text(encoding="utf-8")
    assert [name for name in sorted(added) if name not in text] == []


@pytest.mark.parametrize("name", [name for name in TRACKED if name.endswith(".md")])
def test_every_link_leads_to_a_file(name: str) -> None:
    """No document points at what is not there."""
    path = ROOT / name
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("name", [name for name in TRACKED if name.endswith(".md")])
def test_every_link_leads_to_a_heading(name: str) -> None:
    """Nor at a part of a document that has moved."""
    path = ROOT / name
    links = re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", path.read_text(encoding="utf-8"))
    read = {target: _anchors(path.parent / target if target else path) for target, _ in links}
    assert [f"{target}#{anchor}" for target, anchor in links if anchor not in read[target]] == []


@pytest.mark.parametrize("name", [name for name in TRACKED if name.endswith(".py")])
def test_every_file_holds_one_idea(name: str) -> None:
    """Over 400 lines there are two."""
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= 400


def test_no_file_has_a_name_that_says_nothing() -> None:
    """What belongs anywhere is found nowhere."""
    words = {word for name in TRACKED for word in re.split(r"[^a-z]+", name.lower())}
    assert words & {"util", "utils", "helper", "helpers", "common", "manager", "misc"} == set()


def test_every_make_target_in_the_documents_exists() -> None:
    """What a reader is told to type works."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named: set[str] = set()
    for name in TRACKED:
        if name.endswith(".md"):
            named |= set(re.findall(r"`make ([a-z-]+)", (ROOT / name).read_text(encoding="utf-8")))
    assert named - targets == set()


def _anchors(path: Path) -> set[str]:
    """Return what GitHub lets links name in a document: its headings, in lower case, with dashes for spaces."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}
