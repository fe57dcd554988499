"""Laws of stop strings: the same comes out however a text is cut, and never too early."""

from hypothesis import given
from hypothesis import strategies as st

from server.generation.stop import StopMatcher

few_letters = st.text("ab龜", max_size=12)
stop_lists = st.lists(st.text("ab龜", min_size=1, max_size=4), max_size=3)


def by_letters(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The meaning: read letter by letter, and end when what was read ends with a stop string."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(st.lists(few_letters, max_size=6), stop_lists)
def test_pieces_do_not_matter(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    out = "".join(matcher.push(piece) for piece in pieces)
    expected, stop = by_letters("".join(pieces), stops)
    assert expected.startswith(out)
    assert (out + matcher.flush(), matcher.matched) == (expected, stop)


@given(few_letters, stop_lists)
def test_only_what_may_become_a_stop_string_is_held(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    out = matcher.push(text)
    if matcher.matched is None:
        held = text[len(out) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


@given(few_letters, stop_lists)
def test_the_stop_string_can_be_included(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops, include_stop=True)
    out = matcher.push(text) + matcher.flush()
    expected, stop = by_letters(text, stops)
    assert out == expected + (stop or "")
