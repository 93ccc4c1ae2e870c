"""What the memo keeps of a prompt. Not compiled: a weak reference is taken to it, and compiled classes have none."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.request.prompt import Prompt
from router.request.text import Text


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class KeptPrompt:
    """A prompt, and the text that it was read with."""

    prompt: Prompt = field(repr=False)
    text: Text | None
