"""Ownership of the KV pool's pages: reference counts, prefix reuse, eviction.

A page is in one of three states: *blank* (free, holds nothing worth keeping), *in use* (one or more
requests hold a reference) or *cached* (free, but its content is indexed by digest and may be taken
up again until the page is needed for something else, least recently used first).
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

PAGE_SIZE = 16
"""Tokens of a page."""


def pages_for(tokens: int) -> int:
    """The number of pages that hold so many tokens."""
    return -(-tokens // PAGE_SIZE)


def page_digest(parent: bytes, token_ids: NDArray[np.int32]) -> bytes:
    """Names the content of a full page: its tokens and, through `parent`, all tokens before it.

    128 bits of BLAKE2b, so that two different contexts never meet in practice, not even when a
    client looks for a collision on purpose.
    """
    return blake2b(token_ids.tobytes(), key=parent, digest_size=16).digest()


class OutOfPages(Exception):
    """More pages were asked for than are free."""


class PagePool:
    """The pages 0 .. num_pages-1 of one KV pool."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"a KV pool needs at least one page, got {num_pages}")
        self.num_pages = num_pages
        self._references = [0] * num_pages
        self._digests: list[bytes | None] = [None] * num_pages
        self._index: dict[bytes, int] = {}
        self._blank = list(range(num_pages - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Pages that `allocate` can give, cached ones included."""
        return len(self._blank) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_pages - self.num_free

    def allocate(self, count: int) -> list[int]:
        """Takes `count` free pages, blank ones first, each with one reference.

        Raises `OutOfPages`, and takes none, when fewer are free.
        """
        if count > self.num_free:
            raise OutOfPages(f"{count} pages asked for, {self.num_free} are free")
        pages = []
        for _ in range(count):
            page = self._blank.pop() if self._blank else self._evict()
            self._references[page] = 1
            pages.append(page)
        return pages

    def peek(self, digests: Iterable[bytes]) -> tuple[int, int]:
        """How many leading digests are present, and how many of those pages are in use."""
        present = in_use = 0
        for digest in digests:
            page = self._index.get(digest)
            if page is None:
                break
            present += 1
            in_use += self._references[page] > 0
        return present, in_use

    def match(self, digests: Iterable[bytes]) -> list[int]:
        """The pages of the longest run of leading digests present, each with one reference more."""
        pages = []
        for digest in digests:
            page = self._index.get(digest)
            if page is None:
                break
            if self._references[page] == 0:
                del self._cached[page]
            self._references[page] += 1
            pages.append(page)
        return pages

    def publish(self, page: int, digest: bytes) -> None:
        """Lets a full page in use be found by its digest. The first page of equal content wins."""
        if digest not in self._index:
            self._index[digest] = page
            self._digests[page] = digest

    def release(self, pages: Sequence[int]) -> None:
        """Gives back one reference to each page, the pages in the order of their tokens.

        Of one request the last pages are evicted first, since a prefix is useless without its
        beginning.
        """
        for page in reversed(pages):
            self._references[page] -= 1
            if self._references[page] == 0:
                if self._digests[page] is None:
                    self._blank.append(page)
                else:
                    self._cached[page] = None

    def _evict(self) -> int:
        page, _ = self._cached.popitem(last=False)
        digest = self._digests[page]
        assert digest is not None
        del self._index[digest]
        self._digests[page] = None
        return page
