"""A prompt's token ids: four bytes each, joined from pieces at the price of copying memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Array = array[int]
else:
    _Array = array


class TokenIds(_Array):
    """A sequence of ids below 2^32 that equals a list with the same ids; a slice of it is a list.

    A list would hold a number object for each id: hundreds of kilobytes for a long conversation, built anew with each
    of its turns, though only the ids after the last known block are ever looked at.
    """

    __slots__ = ()
    __hash__ = None  # as for every list

    def __eq__(self, other: object) -> bool:
        if isinstance(other, list):
            return self.tolist() == other
        return bool(array.__eq__(self, other)) if isinstance(other, array) else NotImplemented

    def __getitem__(self, place: Any) -> Any:
        found = array.__getitem__(self, place)
        return found.tolist() if isinstance(place, slice) else found


def packed(ids: Iterable[int] = ()) -> TokenIds:
    """Return ids as `TokenIds`.

    Raises:
        OverflowError: One is 2^32 or more: no tokenizer has it.
    """
    return TokenIds("I", ids)
