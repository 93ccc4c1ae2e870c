"""What every part of the configuration has in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveSeconds = Annotated[float, Field(gt=0, le=86_400)]


class Section(BaseModel):
    """A part of the configuration: unknown keys are mistakes, values do not change after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True, coerce_numbers_to_str=True
    )
