"""Alignment keeps the order, joins only what may be joined, finds the best score, and stays quick on long runs."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphscope.analyze import align as module
from graphscope.analyze.align import Key, Pair, align

KEYS = st.tuples(st.sampled_from("abc"), st.sampled_from([0, 1]), st.sampled_from([0, 1]))
RUNS = st.lists(KEYS, max_size=12)


def score(first: Sequence[Key], second: Sequence[Key], pairs: Sequence[Pair]) -> int:
    return sum(module._score(first[a], second[b]) for a, b in pairs)


def best_score(first: Sequence[Key], second: Sequence[Key]) -> int:
    """By the plainest recurrence there is."""
    before = [0] * (len(second) + 1)
    for one in first:
        row = [0]
        for place, other in enumerate(second):
            gain = before[place] + module._score(one, other) if one[0] == other[0] else 0
            row.append(max(before[place + 1], row[place], gain))
        before = row
    return before[-1]


def assert_sound(first: Sequence[Key], second: Sequence[Key], pairs: Sequence[Pair]) -> None:
    assert all(a < c and b < d for (a, b), (c, d) in itertools.pairwise(pairs))
    assert all(first[a][0] == second[b][0] for a, b in pairs)


@given(RUNS, RUNS)
def test_the_best_alignment_is_found(first: list[Key], second: list[Key]) -> None:
    pairs = align(first, second)
    assert_sound(first, second, pairs)
    assert score(first, second, pairs) == best_score(first, second)


@given(RUNS)
def test_a_run_is_aligned_with_itself_place_by_place(run: list[Key]) -> None:
    assert align(run, run) == [(place, place) for place in range(len(run))]


@given(RUNS, st.lists(st.booleans(), max_size=12))
def test_what_was_left_out_stands_alone(run: list[Key], kept: list[bool]) -> None:
    flags = (kept + [True] * len(run))[: len(run)]
    shorter = [key for key, flag in zip(run, flags, strict=True) if flag]
    pairs = align(run, shorter)
    assert [b for _, b in pairs] == list(range(len(shorter)))
    assert all(run[a] == shorter[b] for a, b in pairs)


@given(RUNS, RUNS)
def test_without_the_exact_method_alignment_is_sound(first: list[Key], second: list[Key]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_EXACT_CELLS", 0)
        assert_sound(first, second, align(first, second))


def test_equal_ops_at_other_lines_are_joined_and_an_inserted_one_is_not() -> None:
    first: list[Key] = [("add", "f", 1), ("add", "f", 1)]
    second: list[Key] = [("add", "f", 9), ("relu", "f", 9), ("add", "f", 9)]
    assert align(first, second) == [(0, 0), (1, 2)]


def test_line_and_module_decide_between_equal_ops() -> None:
    first: list[Key] = [("add", "f", 1), ("add", "f", 2), ("add", "f", 3)]
    assert align(first, [("add", "f", 2)]) == [(1, 0)]
    assert align([("mm", "q", 7), ("mm", "k", 7)], [("mm", "k", 7)]) == [(1, 0)]


def block(letters: str, length: int, seed: int) -> list[Key]:
    source = random.Random(seed)  # noqa: S311  these numbers guard nothing
    return [(source.choice(letters), place // 20, source.randrange(50)) for place in range(length)]


LONG = block("abcde", 10_000, seed=1)
EQUAL: list[Key] = [("add", 0, 1)] * 10_000
LOOP: list[Key] = [(op, 0, line) for _ in range(2000) for line, op in enumerate("maskm")]


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        (LONG, LONG, 10_000),
        (LONG, [key for place, key in enumerate(LONG) if place % 50], 9_800),
        (EQUAL, EQUAL[:9_990], 9_990),
        (EQUAL, [("add", 0, 2)] * 9_000, 9_000),
        (LOOP, [key for key in LOOP if key[0] != "s"], 8_000),
        (LONG, [("z", 0, 0)] * 10_000, 0),
    ],
    ids=["equal", "some left out", "all the same op", "all at another line", "loop without one op", "nothing shared"],
)
def test_ten_thousand_ops_take_about_a_second(first: list[Key], second: list[Key], joined: int) -> None:
    started = time.perf_counter()
    pairs = align(first, second)
    assert time.perf_counter() - started < 5
    assert_sound(first, second, pairs)
    assert len(pairs) == joined


def test_two_long_runs_without_likeness_still_come_to_an_end() -> None:
    first = [(key[0], 0, 0) for key in LONG]
    second = [(key[0], 0, 0) for key in block("abcde", 10_000, seed=2)]
    pairs = align(first, second)
    assert_sound(first, second, pairs)
    assert len(pairs) > 1_000
