"""What the configuration says of names that stand for several models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field

from router.config_section import Section


class SplitTarget(Section):
    """One of the models that a name stands for."""

    model: str = Field(min_length=1, description="a name that replicas serve")
    weight: float = Field(
        1.0, gt=0, le=1_000_000, description="its share of conversations, against the others' weights"
    )


def name_problems(models: Sequence[Any], splits: Any) -> Iterable[tuple[str, str, str]]:
    """Yield (path, message, remedy) of names that mean two things; the arguments as the file has them."""
    taken = "this name is a model or an alias already"
    meant = {item["name"] for item in models if isinstance(item, dict) and isinstance(item.get("name"), str)}
    for position, item in enumerate(models):
        aliases = item.get("aliases") if isinstance(item, dict) else None
        for place, alias in enumerate(aliases if isinstance(aliases, list | tuple) else ()):
            if not isinstance(alias, str):
                continue
            if alias in meant:
                yield (
                    f"models.{position}.aliases.{place}",
                    "this name is a model or an alias already",
                    "give it one meaning",
                )
            meant.add(alias)
    if not isinstance(splits, Mapping):
        return
    for name, targets in splits.items():
        if name in meant:
            yield f"splits.{name}", taken, "give it one meaning"
        seen: set[str] = set()
        for place, target in enumerate(targets if isinstance(targets, list | tuple) else ()):
            model = target.get("model") if isinstance(target, dict) else None
            if model in splits:
                yield f"splits.{name}.{place}.model", "is a split itself", "name a model"
            elif isinstance(model, str) and model in seen:
                yield f"splits.{name}.{place}.model", "is named twice", "give it one weight"
            seen.add(str(model))
