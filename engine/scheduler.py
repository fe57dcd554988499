"""Which tokens the next step computes.

Continuous batching with chunked prefill. Every step first decodes one token of each request that
is past its prompt, then spends what is left of the token budget on prefill. Requests are admitted
first come first served within a priority. When pages run out the youngest running request is
preempted: its pages are released and it is computed anew later, mostly from the prefix cache.
"""

from bisect import insort

from engine.batch import Chunk
from engine.config import EngineConfig
from engine.kv_cache import PAGE_SIZE, PagePool, pages_for
from engine.request import Request


def _order(request: Request) -> tuple[int, int]:
    return request.order


class Scheduler:
    """The waiting and the running requests of one engine, both oldest first, and their pages.

    Two laws keep it free of deadlock and starvation. The oldest running request can take pages
    from all others, and no request that needs more than the pool is let in, so the oldest always
    ends. Half of each step's prefill budget belongs to the oldest prefill, the other half to the
    shortest, so that neither a long prompt nor a stream of short ones holds up the other.
    """

    def __init__(self, config: EngineConfig, pool: PagePool) -> None:
        self.config = config
        self.pool = pool
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0

    def add(self, request: Request) -> None:
        insort(self.waiting, request, key=_order)

    def remove(self, request: Request) -> None:
        """Takes a waiting or running request out and frees its pages."""
        if request.running:
            self._stop(request)
        else:
            self.waiting.remove(request)

    def schedule(self) -> list[Chunk]:
        """Plans the next step; empty only when there is no request.

        Pages for the planned tokens are allocated, and full pages of prefill chunks may be shared
        by later chunks of the same plan: within a step, all KV entries of a layer are written
        before any are read.
        """
        self._admit()
        plan: dict[Request, Chunk] = {}
        self._plan_decodes(plan)
        self._plan_prefills(plan)
        return list(plan.values())

    def complete(self, chunks: list[Chunk]) -> None:
        """Records that the planned tokens were computed."""
        for chunk in chunks:
            chunk.request.num_computed = chunk.end
            self._publish(chunk.request, chunk.end)

    def _admit(self) -> None:
        """Starts waiting requests while there are seats, and pages for all their tokens."""
        if not self.waiting or len(self.running) >= self.config.max_num_seqs:
            return
        promised = sum(self._missing_pages(request) for request in self.running)
        while self.waiting and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            digests = self._reusable_digests(request)
            present, in_use = self.pool.peek(digests)
            free = self.pool.num_free - (present - in_use) - promised
            if self._missing_pages(request) - present > free:
                return
            self.waiting.pop(0)
            insort(self.running, request, key=_order)
            request.running = True
            self._reuse(request)
            if request.preemptions == 0 and self._may_reuse(request):
                self.prefix_queries += request.prompt_len
            promised += self._missing_pages(request)

    def _plan_decodes(self, plan: dict[Request, Chunk]) -> None:
        for request in tuple(self.running):
            if not request.running or request.num_remaining != 1:
                continue
            while not self._hold_pages(request, request.num_tokens):
                self._preempt(self.running[-1])
                if not request.running:
                    break
            else:
                plan[request] = self._chunk(request, 1)

    def _plan_prefills(self, plan: dict[Request, Chunk]) -> None:
        prefills = [request for request in self.running if request not in plan]
        if not prefills:
            return
        for request in prefills:
            self._reuse(request)
        remaining = [request.num_remaining for request in prefills]
        share = whole_budget if self.config.whole_prompts else split_budget
        grants = share(remaining, self.config.max_batch_tokens - len(plan))
        spare_rows = self.config.max_logit_rows - len(self.running)
        oldest = prefills[0]
        for request, grant in zip(prefills, grants, strict=True):
            if not request.running:
                continue
            self._reuse(request)
            count = min(grant, request.num_remaining)
            if request.wants_prompt_rows:
                count = min(count, 1 + spare_rows)
            if request is oldest:
                self._make_room(request, count, plan)
            count = _to_page_end(request, min(count, self._room(request)))
            if count <= 0 or (self.config.whole_prompts and count < request.num_remaining):
                continue
            self._hold_pages(request, request.num_computed + count)
            chunk = self._chunk(request, count)
            spare_rows -= max(chunk.num_rows - 1, 0)
            plan[request] = chunk
            self._publish(request, chunk.end)

    def _make_room(self, request: Request, count: int, plan: dict[Request, Chunk]) -> None:
        """Preempts younger requests until `count` more tokens of the request have pages.

        What this step has planned for them is dropped. That is safe before any prefill is planned,
        since no other request can have been matched with pages that they would have filled.
        """
        while self._room(request) < count:
            victim = self.running[-1]
            if victim is request:
                return
            plan.pop(victim, None)
            self._preempt(victim)

    def _chunk(self, request: Request, count: int) -> Chunk:
        start = request.num_computed
        end = start + count
        if self.config.whole_prompts:
            num_rows = count
        elif request.wants_prompt_rows:
            num_rows = max(end - max(start, request.next_prompt_row), 0)
        else:
            num_rows = int(end == request.num_tokens and request.max_tokens > 0)
        return Chunk(request, start, count, num_rows)

    def _missing_pages(self, request: Request) -> int:
        """Pages to be added before the request can have computed all its tokens and one more."""
        longest = min(request.num_tokens + 1, request.kv_tokens)
        return max(pages_for(longest) - request.num_pages, 0)

    def _room(self, request: Request) -> int:
        """Tokens that can be computed now: the request holds pages for them or could take some."""
        return (request.num_pages + self.pool.num_free) * PAGE_SIZE - request.num_computed

    def _hold_pages(self, request: Request, num_tokens: int) -> bool:
        """Adds pages until the request holds enough for `num_tokens`; False when none are left."""
        missing = pages_for(num_tokens) - request.num_pages
        if missing <= 0:
            return True
        if missing > self.pool.num_free:
            return False
        request.append_pages(self.pool.allocate(missing))
        return True

    def _may_reuse(self, request: Request) -> bool:
        return self.config.prefix_cache and not request.wants_prompt_rows

    def _reusable_digests(self, request: Request) -> list[bytes]:
        """Digests of the leading pages that may come from the cache; one token stays to compute."""
        if not self._may_reuse(request):
            return []
        num_pages = (request.num_tokens - 1) // PAGE_SIZE
        return request.page_digests(num_pages)[:num_pages]

    def _reuse(self, request: Request) -> None:
        """Moves the request ahead over full pages that the cache holds."""
        held = request.num_pages
        if held * PAGE_SIZE != request.num_computed:
            return
        pages = self.pool.match(self._reusable_digests(request)[held:])
        if not pages:
            return
        request.append_pages(pages)
        request.num_computed = request.num_pages * PAGE_SIZE
        request.num_published = request.num_pages
        if request.preemptions == 0:
            found = min(len(pages) * PAGE_SIZE, request.prompt_len)
            request.cached_tokens += found
            self.prefix_hits += found

    def _publish(self, request: Request, num_tokens: int) -> None:
        """Enters the request's full pages among its first `num_tokens` tokens into the index."""
        full = num_tokens // PAGE_SIZE
        if full == request.num_published or not self.config.prefix_cache:
            return
        digests = request.page_digests(full)
        for index in range(request.num_published, full):
            self.pool.publish(int(request.pages[index]), digests[index])
        request.num_published = full

    def _preempt(self, request: Request) -> None:
        self._stop(request)
        request.preemptions += 1
        self.preemptions += 1
        self.add(request)

    def _stop(self, request: Request) -> None:
        self.running.remove(request)
        request.running = False
        self.pool.release(request.take_pages())


def _to_page_end(request: Request, count: int) -> int:
    """Shortens a chunk that does not end its request to a page's end, where others can go on."""
    end = request.num_computed + count
    aligned = end - end % PAGE_SIZE
    if end < request.num_tokens and aligned > request.num_computed:
        return aligned - request.num_computed
    return count


def split_budget(remaining: list[int], budget: int) -> list[int]:
    """Shares a step's prefill tokens among requests, which are given oldest first.

    One half of the budget is spent in the order of age, then all that is left in the order of what
    remains to be computed, the shortest first.
    """
    grants = [0] * len(remaining)
    left = budget

    def spend(order: list[int], allowance: int) -> int:
        for index in order:
            grant = min(remaining[index] - grants[index], allowance)
            grants[index] += grant
            allowance -= grant
        return allowance

    by_age = list(range(len(remaining)))
    half = budget - budget // 2
    left = budget - half + spend(by_age, half)
    spend(sorted(by_age, key=remaining.__getitem__), left)
    return grants


def whole_budget(remaining: list[int], budget: int) -> list[int]:
    """All or nothing for each prefill: what fits beside those before it, which are older."""
    grants = []
    for count in remaining:
        grants.append(count if count <= budget else 0)
        budget -= grants[-1]
    return grants
