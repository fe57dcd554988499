"""What is asked and when: chats of several lengths at Poisson arrival times, all from one seed."""

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DEFAULT_MIX = "24:48*4,160x3:96*2,600:64*1"

_WORDS = np.array(
    re.findall(
        r"\w+",
        """
    amber anchor apple autumn basket beacon bridge candle canyon cedar circle cloud copper coral
    cotton desert drum eagle echo ember engine falcon feather field forest garden glass granite
    harbor honey island ivory jacket kernel ladder lantern lemon letter marble meadow mirror
    mountain needle ocean olive orchard paper pebble pepper pilot planet quartz rabbit ribbon
    river saddle shadow silver spider station summer temple thunder timber tunnel valley velvet
    violin walnut window winter
    """,
    )
)


@dataclass(frozen=True)
class Shape:
    """One kind of chat: words and user turns of the prompt, tokens of the answer, share of the mix."""

    prompt_words: int
    output_tokens: int
    turns: int = 1
    weight: float = 1.0


@dataclass(frozen=True)
class Chat:
    """One request to be sent; its messages are of the user and the assistant in turn."""

    messages: tuple[str, ...]
    output_tokens: int


def parse_mix(text: str) -> tuple[Shape, ...]:
    """Shapes of `WORDSxTURNS:TOKENS*WEIGHT,...`; turns and weight are 1 where they are left out.

    Raises `ValueError`.
    """
    shapes = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:x(\d+))?:(\d+)(?:\*(\d+(?:\.\d+)?))?\s*", part)
        if match is None:
            raise ValueError(f"{part!r} is not WORDS:TOKENS or WORDSxTURNS:TOKENS*WEIGHT")
        shape = Shape(int(match[1]), int(match[3]), int(match[2] or 1), float(match[4] or 1))
        if min(shape.turns, shape.output_tokens, shape.weight) <= 0:
            raise ValueError(f"the numbers of {part!r} must be greater than 0")
        if shape.prompt_words < _messages(shape):
            raise ValueError(f"{part!r} needs a word for each of its {_messages(shape)} messages")
        shapes.append(shape)
    return tuple(shapes)


def _messages(shape: Shape) -> int:
    """The user's turns with the assistant's between them."""
    return 2 * shape.turns - 1


def make_chats(mix: tuple[Shape, ...], count: int, seed: int) -> list[Chat]:
    """Chats of random words, so that no prefix cache can answer for the model."""
    rng = np.random.default_rng((seed, 1))
    weights = np.array([shape.weight for shape in mix])
    chats = []
    for index in rng.choice(len(mix), size=count, p=weights / weights.sum()):
        shape = mix[index]
        words = rng.choice(_WORDS, size=shape.prompt_words)
        messages = np.array_split(words, _messages(shape))
        chats.append(Chat(tuple(" ".join(part) for part in messages), shape.output_tokens))
    return chats


def arrivals_of_count(rate: float, count: int, seed: int) -> NDArray[np.float64]:
    """Seconds from the start at which `count` requests are due, `rate` a second on average.

    The gaps are exponential. An infinite rate makes all of them due at once.
    """
    if math.isinf(rate):
        return np.zeros(count)
    return np.random.default_rng((seed, 0)).exponential(1 / rate, size=count).cumsum()


def arrivals_within(rate: float, duration_s: float, seed: int) -> NDArray[np.float64]:
    """Like `arrivals_of_count`, as many as fall into `duration_s`. The rate must be finite."""
    rng = np.random.default_rng((seed, 0))
    times = np.zeros(0)
    last_s = 0.0
    while last_s <= duration_s:
        gaps = rng.exponential(1 / rate, size=1024)
        times = np.concatenate([times, last_s + gaps.cumsum()])
        last_s = float(times[-1])
    return times[times <= duration_s]
