"""Dictionary whose copies share what they have in common, so that a copy of many entries costs what few do."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, MutableMapping
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
MOST = 64  # own changes that a copy takes along
_NONE, _GONE = object(), object()


class SharedDict(MutableMapping[K, V]):
    """Dictionary that consists of entries that its copies have, too, and of its own changes.

    The shared entries never change, so a copy in another thread can be read and changed. A copy takes the at most MOST
    changes along; if there are more, they first become shared ones, which costs the whole size once. A look-up costs two.
    The order of the entries is not that of their insertion.
    """

    __slots__ = ("_own", "_shared", "_size")

    def __init__(self) -> None:
        self._shared: dict[K, V] = {}
        self._own: dict[K, Any] = {}  # _GONE: a shared entry that this dictionary does not have any more
        self._size = 0

    def __getitem__(self, key: K) -> V:
        found = self._own.get(key, _NONE)
        if found is _NONE:
            return self._shared[key]
        if found is _GONE:
            raise KeyError(key)
        return found  # type: ignore[no-any-return]

    def __contains__(self, key: object) -> bool:
        found = self._own.get(key, _NONE)  # type: ignore[arg-type]
        return found is not _GONE if found is not _NONE else key in self._shared

    def __setitem__(self, key: K, value: V) -> None:
        self._size += key not in self
        self._own[key] = value

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self._size -= 1
        if key in self._shared:
            self._own[key] = _GONE
        else:
            del self._own[key]

    def __iter__(self) -> Iterator[K]:
        yield from (key for key in self._shared if key not in self._own)
        yield from (key for key, value in self._own.items() if value is not _GONE)

    def __len__(self) -> int:
        return self._size

    def __copy__(self) -> SharedDict[K, V]:
        if len(self._own) > MOST:
            self._shared, self._own = dict(self), {}
        same: SharedDict[K, V] = SharedDict()
        same._shared, same._own, same._size = self._shared, self._own.copy(), self._size
        return same
