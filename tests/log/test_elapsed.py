"""Elapsed time: ages are those that were observed to pass, whatever happens to the wall clock and to the machine."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.options import DAY, HOUR, MINUTE
from headwater.log.clock import REAL_CLOCK
from headwater.log.elapsed import CLOCK_FILE, MARGIN_NS, SETTLING_NS, Elapsed
from headwater.testing import ManualClock

YEAR = 365 * DAY
AGES = [0.0, 1.0, HOUR, 8 * DAY]


def seconds(age_ns: int) -> float:
    return age_ns / 1e9


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def elapsed(clock: ManualClock, tmp_path: Path) -> Elapsed:
    """One that has watched the clock for long."""
    watching = Elapsed(clock, tmp_path)
    clock.advance(2 * HOUR)
    watching.look()
    watching.keep()
    return watching


def again(clock: ManualClock, tmp_path: Path) -> Elapsed:
    """The same, as another program has it that looks at the clocks for the first time."""
    watching = Elapsed(clock, tmp_path)
    watching.look()
    watching.keep()
    return watching


@pytest.mark.parametrize("age", AGES)
def test_what_was_observed_to_pass_is_the_age(clock: ManualClock, elapsed: Elapsed, age: float) -> None:
    made = clock.now_ns()
    clock.advance(age)
    assert seconds(elapsed.age_ns(made)) == age
    elapsed.look()
    assert seconds(elapsed.age_ns(made)) == age
    assert elapsed.warning is None


@pytest.mark.parametrize("jump", [YEAR, 8 * DAY, HOUR, -HOUR, -DAY, -YEAR, -50 * YEAR])
@pytest.mark.parametrize("looked", [False, True])
def test_a_jump_makes_nothing_older(clock: ManualClock, tmp_path: Path, jump: float, looked: bool) -> None:
    elapsed = again(clock, tmp_path)
    clock.advance(2 * HOUR)
    elapsed.look()
    before = clock.now_ns()
    clock.advance(10)
    clock.jump(jump)
    clock.advance(10)
    if looked:
        elapsed.look()
    during = clock.now_ns()
    clock.advance(10)
    assert (seconds(elapsed.age_ns(before)), seconds(elapsed.age_ns(during))) == (30, 10)
    for _ in range(5):
        clock.advance(DAY)
        elapsed.look()
    clock.jump(-jump)
    elapsed.look()
    clock.advance(10)
    after = clock.now_ns()
    clock.advance(30)
    assert seconds(elapsed.age_ns(after)) == 30
    # A time that may be of the right clock or of the wrong one counts as the younger of the two.
    assert 0 <= seconds(elapsed.age_ns(before)) <= 5 * DAY + 70
    assert seconds(elapsed.age_ns(during)) == 5 * DAY + 50


@pytest.mark.parametrize("jump", [YEAR, 8 * DAY, -DAY])
def test_a_jump_is_told_of(clock: ManualClock, elapsed: Elapsed, jump: float, caplog: pytest.LogCaptureFixture) -> None:
    clock.jump(jump)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            clock.advance(MINUTE)
            elapsed.look()
    assert elapsed.warning is not None
    assert f"set {'ahead' if jump > 0 else 'back'} by {abs(jump):,.0f} s" in elapsed.warning
    assert [record.message for record in caplog.records] == [f"{elapsed._path.parent}: {elapsed.warning}"]  # type: ignore[union-attr]
    clock.advance(SETTLING_NS / 1e9)
    elapsed.look()
    assert elapsed.warning is None, "it stays, so it is no news any more"


def test_another_program_notices_a_jump_too(clock: ManualClock, elapsed: Elapsed, tmp_path: Path) -> None:
    made = clock.now_ns()
    clock.jump(YEAR)
    clock.advance(10)
    other = again(clock, tmp_path)
    assert (seconds(other.age_ns(made)), seconds(elapsed.age_ns(made))) == (10, 10)
    assert other.warning is not None


def test_smaller_steps_are_nothing_to_speak_of(clock: ManualClock, elapsed: Elapsed) -> None:
    made = clock.now_ns()
    clock.jump(MARGIN_NS / 1e9)
    clock.advance(10)
    elapsed.look()
    assert (seconds(elapsed.age_ns(made)), elapsed.warning) == (10, None)
    assert elapsed.age_ns(clock.now_ns()) == 0


# Machines that are off.


def test_being_off_is_time_that_passes_once_the_clock_is_steady(clock: ManualClock, tmp_path: Path) -> None:
    again(clock, tmp_path)
    clock.advance(2 * HOUR)
    again(clock, tmp_path)
    made = clock.now_ns()
    clock.reboot(off=7 * DAY)
    clock.advance(MINUTE)
    new = clock.now_ns()
    elapsed = again(clock, tmp_path)
    assert (seconds(elapsed.age_ns(made)), seconds(elapsed.age_ns(new))) == (MINUTE, 0)
    assert elapsed.warning is not None
    assert "since the machine was started" in elapsed.warning
    clock.advance(HOUR)
    elapsed = again(clock, tmp_path)
    assert seconds(elapsed.age_ns(made)) == 7 * DAY + HOUR + MINUTE
    assert seconds(elapsed.age_ns(new)) == HOUR
    assert elapsed.warning is None
    assert seconds(elapsed.age_ns(clock.now_ns())) == 0


def test_a_machine_that_slept_was_never_off(clock: ManualClock, elapsed: Elapsed) -> None:
    made = clock.now_ns()
    clock.advance(7 * DAY)  # the boot clock goes on while a machine sleeps
    assert seconds(elapsed.age_ns(made)) == 7 * DAY


@pytest.mark.parametrize("wrong", [YEAR, -YEAR])
def test_a_clock_that_is_corrected_soon_after_a_start_has_cost_nothing(
    clock: ManualClock, tmp_path: Path, wrong: float
) -> None:
    again(clock, tmp_path)
    clock.advance(2 * HOUR)
    again(clock, tmp_path)
    made = clock.now_ns()
    clock.reboot(off=wrong)
    for _ in range(3):
        clock.advance(10 * MINUTE)
        assert again(clock, tmp_path).age_ns(made) <= 30 * MINUTE * 1e9
    during = clock.now_ns()
    clock.jump(DAY - wrong)
    for _ in range(2):
        clock.advance(HOUR)
        again(clock, tmp_path)
    clock.advance(HOUR)
    elapsed = again(clock, tmp_path)
    assert seconds(elapsed.age_ns(made)) == DAY + 3.5 * HOUR
    assert seconds(elapsed.age_ns(during)) == 3 * HOUR


def test_a_correction_before_another_start_is_not_taken_for_time_that_passed(
    clock: ManualClock, tmp_path: Path
) -> None:
    clock.jump(-20 * YEAR)  # as a machine without a battery starts
    again(clock, tmp_path)
    made = clock.now_ns()
    clock.advance(2 * HOUR)
    again(clock, tmp_path)
    clock.jump(20 * YEAR)
    clock.advance(MINUTE)
    again(clock, tmp_path)
    clock.reboot(off=MINUTE)
    for _ in range(2):
        clock.advance(HOUR)
        again(clock, tmp_path)
    clock.advance(HOUR)
    elapsed = again(clock, tmp_path)
    assert seconds(elapsed.age_ns(made)) == pytest.approx(5 * HOUR, abs=3 * MINUTE)


def test_a_clock_that_is_wrong_when_a_store_begins_is_no_age(clock: ManualClock, tmp_path: Path) -> None:
    clock.jump(-50 * YEAR)
    elapsed = again(clock, tmp_path)
    made = clock.now_ns()
    clock.advance(MINUTE)
    clock.jump(50 * YEAR)
    for _ in range(3):
        clock.advance(HOUR)
        elapsed = again(clock, tmp_path)
    assert seconds(elapsed.age_ns(made)) == 3 * HOUR + MINUTE


def test_a_clock_that_was_never_set_is_not_believed(clock: ManualClock, tmp_path: Path) -> None:
    """As on a machine without a battery and without a network, that gets one with its next start."""
    clock.jump(-50 * YEAR)
    again(clock, tmp_path)
    made = clock.now_ns()
    clock.advance(5 * HOUR)
    again(clock, tmp_path)
    clock.reboot(off=50 * YEAR)
    for _ in range(3):
        clock.advance(HOUR)
        again(clock, tmp_path)
    assert seconds(again(clock, tmp_path).age_ns(made)) == 8 * HOUR


# Times from before the first look, or of a clock that nobody has seen.


def test_what_is_older_than_the_first_look_is_of_age_an_hour_later(clock: ManualClock, tmp_path: Path) -> None:
    made = clock.now_ns()
    clock.advance(8 * DAY)
    elapsed = again(clock, tmp_path)
    assert elapsed.age_ns(made) == 0
    assert elapsed.warning is not None
    assert "nobody has compared the clocks here for an hour yet" in elapsed.warning
    clock.advance(HOUR)
    elapsed = again(clock, tmp_path)
    assert seconds(elapsed.age_ns(made)) == 8 * DAY + HOUR
    assert elapsed.warning is None


def test_times_in_the_future_keep_nothing_for_ever(clock: ManualClock, tmp_path: Path, elapsed: Elapsed) -> None:
    clock.advance(DAY)
    made = clock.now_ns() + int(YEAR * 1e9)
    elapsed.look()
    assert elapsed.age_ns(made) == 0
    elapsed.keep()
    clock.advance(3 * DAY)
    assert seconds(again(clock, tmp_path).age_ns(made)) == 3 * DAY
    clock.advance(YEAR)
    assert seconds(again(clock, tmp_path).age_ns(made)) == 3 * DAY


def test_a_clock_that_nobody_saw_makes_nothing_old(clock: ManualClock, tmp_path: Path, elapsed: Elapsed) -> None:
    """As when it was a year ahead between two looks, and then, later and while it is two years ahead, a week."""
    for ahead in (YEAR, 8 * DAY):
        clock.jump(ahead)
        made = clock.now_ns()
        clock.jump(2 * YEAR - ahead)
        clock.advance(10)
        assert elapsed.age_ns(made) == 0
        elapsed = again(clock, tmp_path)
        assert elapsed.age_ns(made) <= 10e9
        elapsed.keep()
        clock.jump(-2 * YEAR)
        clock.advance(30 * DAY)
        elapsed = again(clock, tmp_path)


# The record.


@pytest.mark.parametrize("content", [b"", b"{}", b"\x00" * 100, b"{}\n00000000\n", b"[]\n1\n2\n3\n"])
def test_a_record_that_cannot_be_read_makes_nothing_old(clock: ManualClock, tmp_path: Path, content: bytes) -> None:
    again(clock, tmp_path)
    made = clock.now_ns()
    (tmp_path / CLOCK_FILE).write_bytes(content)
    clock.advance(8 * DAY)
    assert again(clock, tmp_path).age_ns(made) == 0


def test_a_bit_that_flips_in_the_record_makes_nothing_old(clock: ManualClock, tmp_path: Path) -> None:
    again(clock, tmp_path)
    path, made = tmp_path / CLOCK_FILE, clock.now_ns()
    sound = path.read_bytes()
    for bit in range(0, len(sound) * 8, 5):
        broken = bytearray(sound)
        broken[bit // 8] ^= 1 << bit % 8
        path.write_bytes(broken)
        assert Elapsed(clock, tmp_path).age_ns(made) == 0


def test_a_clock_that_never_rests_costs_little_room(clock: ManualClock, tmp_path: Path) -> None:
    elapsed = Elapsed(clock, tmp_path)
    for number in range(300):
        clock.advance(1)
        clock.jump(DAY if number % 2 else -DAY)
        elapsed.look()
    elapsed.keep()
    assert (tmp_path / CLOCK_FILE).stat().st_size < 100_000
    assert elapsed.age_ns(clock.now_ns()) == 0


def test_the_clocks_of_this_machine() -> None:
    elapsed = Elapsed(REAL_CLOCK)
    made = REAL_CLOCK.now_ns()
    assert REAL_CLOCK.boot_ns() <= REAL_CLOCK.boot_ns()
    assert elapsed.age_ns(made) < MARGIN_NS
    assert elapsed.age_ns(made - 10**18) == 0, "who knows what the clock was then"


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["advance", "jump", "look", "keep", "forget"]),
        st.sampled_from([1.0, MINUTE, HOUR, DAY, 8 * DAY, YEAR, -HOUR, -DAY, -YEAR]),
    ),
    max_size=40,
)


@given(moves=MOVES)
def test_nothing_is_ever_older_than_it_is(
    moves: list[tuple[str, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever the wall clock does, as long as each of its jumps is seen before the next, and the machine runs."""
    clock = ManualClock()
    path = tmp_path_factory.mktemp("clock")
    elapsed = again(clock, path)
    passed = 0.0
    made: list[tuple[int, float]] = []
    for move, amount in moves:
        if move == "advance":
            clock.advance(abs(amount))
            passed += abs(amount)
        elif move == "jump":
            clock.jump(amount)
        elapsed.look()
        elapsed.keep()
        if move == "forget":
            elapsed = Elapsed(clock, path)
        made.append((clock.now_ns(), passed))
        for written, since in made:
            assert seconds(elapsed.age_ns(written)) <= passed - since
