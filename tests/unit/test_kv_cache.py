"""Laws of the page pool: nothing leaks, nothing is owned twice, a digest finds its own content."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.kv_cache import PAGE_SIZE, OutOfPages, PagePool, page_digest, pages_for

NUM_PAGES = 12
CONTENTS = st.lists(st.integers(0, 2), max_size=6)
"""What a chain of full pages holds, one small number a page, so that prefixes often meet."""


def chain(contents: list[int]) -> list[bytes]:
    digests: list[bytes] = []
    for number in contents:
        tokens = np.full(PAGE_SIZE, number, np.int32)
        digests.append(page_digest(digests[-1] if digests else b"", tokens))
    return digests


class Pool(RuleBasedStateMachine):
    """Requests take, share and give back pages in any order; `written` is what each page holds."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.held: list[list[int]] = []
        self.written: dict[int, bytes] = {}

    @rule(contents=CONTENTS, publish=st.booleans())
    def start(self, contents: list[int], publish: bool) -> None:
        digests = chain(contents)
        present, in_use = self.pool.peek(digests)
        free = self.pool.num_free
        pages = self.pool.match(digests)
        assert len(pages) == present
        assert self.pool.num_free == free - (present - in_use)
        assert [self.written[page] for page in pages] == digests[: len(pages)]
        wanted = len(digests) - len(pages)
        if wanted > self.pool.num_free:
            with pytest.raises(OutOfPages):
                self.pool.allocate(wanted)
            self.pool.release(pages)
            return
        fresh = self.pool.allocate(wanted)
        in_hands = {page for request in self.held for page in request} | set(pages)
        assert not in_hands & set(fresh)
        for page, digest in zip(fresh, digests[len(pages) :], strict=True):
            self.written[page] = digest
            if publish:
                self.pool.publish(page, digest)
        self.held.append(pages + fresh)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.pool.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def every_page_is_free_or_held(self) -> None:
        used = {page for request in self.held for page in request}
        assert self.pool.num_used == len(used)
        assert self.pool.num_free == NUM_PAGES - len(used)

    def teardown(self) -> None:
        for request in self.held:
            self.pool.release(request)
        assert sorted(self.pool.allocate(NUM_PAGES)) == list(range(NUM_PAGES))


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def publish_chain(pool: PagePool, contents: list[int]) -> list[int]:
    pages = pool.allocate(len(contents))
    for page, digest in zip(pages, chain(contents), strict=True):
        pool.publish(page, digest)
    return pages


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2), (160, 10)])
def test_pages_for(tokens: int, pages: int) -> None:
    assert pages_for(tokens) == pages


def test_a_digest_depends_on_all_tokens_before_it() -> None:
    one, other = chain([1, 5]), chain([2, 5])
    assert len(one[0]) == 16
    assert one[1] != other[1]


def test_pages_of_a_finished_request_are_found_again() -> None:
    pool = PagePool(4)
    pages = publish_chain(pool, [1, 2, 3])
    pool.release(pages)
    assert pool.num_used == 0
    assert pool.match(chain([1, 2, 9])) == pages[:2]
    assert pool.num_used == 2


def test_blank_pages_go_first_then_the_least_recently_used_tail() -> None:
    pool = PagePool(5)
    old, young = publish_chain(pool, [1, 1]), publish_chain(pool, [2, 2])
    pool.release(old)
    pool.release(young)
    pool.allocate(1)
    assert pool.peek(chain([1, 1])) == (2, 0)
    pool.allocate(1)
    assert pool.peek(chain([1, 1])) == (1, 0)
    pool.allocate(1)
    assert pool.peek(chain([1, 1])) == (0, 0)
    assert pool.peek(chain([2, 2])) == (2, 0)


def test_equal_content_is_indexed_once_and_the_copy_becomes_blank() -> None:
    pool = PagePool(3)
    first, second = publish_chain(pool, [7]), publish_chain(pool, [7])
    pool.release(second)
    assert pool.match(chain([7])) == first
    pool.release(first)
    pool.release(first)
    assert pool.allocate(2) != first  # the two blank pages go first
    assert pool.peek(chain([7])) == (1, 0)
