"""How the benchmark times: windows, whose noise is seen, in turn, by threads that are awake. No timing is asserted."""

import itertools
import timeit

import pytest

from onepass.bench.timing import Effort, Meter, Reading, Timing, Window, interleave, warm_up


class Clock(Meter):
    """A meter that reads a script: (seconds of wall, own, busy) per window."""

    tick, processors = 0.01, 2

    def __init__(self, windows):
        self.now = Reading(0.0, 0.0, 0.0)
        self.script = iter(windows)
        self.inside = False

    def read(self):
        self.inside = not self.inside
        if not self.inside:
            wall, own, busy = next(self.script)
            before = self.now
            self.now = Reading(before.wall + wall, before.own + own, None if busy is None else before.busy + busy)
        return self.now


@pytest.mark.parametrize(
    ("wall", "own", "busy", "others", "noisy"),
    [
        (1.0, 2.0, 2.0, 0.0, False),  # all of it ours
        (1.0, 1.9, 2.0, 0.05, True),  # 5% of the machine is someone else's
        (1.0, 0.5, 0.56, 0.03, False),
        (0.01, 0.02, 0.03, 0.5, False),  # one tick of a coarse clock is no evidence
        (0.01, 0.02, 0.05, 1.5, True),
        (1.0, 2.0, 1.98, 0.0, False),  # never negative
    ],
)
def test_a_window_is_noisy_when_others_used_the_machine(wall, own, busy, others, noisy):
    meter = Meter()
    meter.tick, meter.processors = 0.01, 2
    window = meter.window(Reading(5.0, 1.0, 100.0), Reading(5.0 + wall, 1.0 + own, 100.0 + busy), 0.4, 4)
    assert window.others == pytest.approx(others)
    assert (window.noisy, window.seconds, window.calls) == (noisy, 0.1, 4)


def test_where_the_system_does_not_tell_nothing_is_called_noisy():
    window = Meter().window(Reading(0, 0, None), Reading(1, 1, None), 1.0, 1)
    assert (window.others, window.noisy) == (None, False)


def test_the_median_is_over_quiet_windows_when_there_are_enough():
    quiet = [Window(second, 1, 0.0, False) for second in (1.0, 2.0, 3.0)]
    loud = [Window(50.0, 1, 0.5, True)] * 4
    enough, few = Timing((*loud, *quiet)), Timing((*loud, *quiet[:2]))
    assert (enough.median, enough.noisy, enough.quiet) == (2.0, False, 3)
    assert enough.spread == pytest.approx(0.5)
    assert (few.median, few.noisy, few.quiet) == (50.0, True, 2)
    assert not Timing(tuple(quiet[:1])).noisy


@pytest.mark.parametrize(("busy", "rounds"), [(0.0, 3), (1.0, 5)], ids=["quiet", "loud"])
def test_rounds_go_on_while_quiet_windows_are_missing(busy, rounds):
    timers = {name: timeit.Timer("sum(range(100))") for name in ("a", "b")}
    script = [(1.0, 0.0, busy)] * 20
    found = interleave(timers, Effort(rounds=3, most_rounds=5, window_seconds=1e-4), seed=0, meter=Clock(script))
    assert {len(timing.windows) for timing in found.values()} == {rounds}
    assert all(timing.noisy == (busy > 0) for timing in found.values())


def test_contenders_alternate_in_changing_order():
    calls = []
    names = ("a", "b", "c")
    timers = {name: timeit.Timer(lambda name=name: calls.append(name)) for name in names}
    effort = Effort(rounds=6, most_rounds=6, window_seconds=1e-9)
    interleave(timers, effort, seed=0, meter=Clock([(1.0, 1.0, 1.0)] * 18))
    timed = "".join(calls)[-18:]  # one call per window: too short a window for more
    rounds = [timed[i : i + 3] for i in range(0, 18, 3)]
    assert all(sorted(order) == list(names) for order in rounds)
    assert len(set(rounds)) > 1


class Script:
    """A timer whose calls take these seconds, and the last of them from then on."""

    def __init__(self, *seconds):
        self.script = itertools.chain(seconds, itertools.repeat(seconds[-1]))
        self.calls = 0

    def timeit(self, calls):
        self.calls += calls
        return sum(itertools.islice(self.script, calls))


@pytest.mark.parametrize(("seconds", "usual", "calls"), [
    ((0.006, 0.006, 0.006, 0.006, 0.0002), 0.0002, 7),  # late ones first: until three in a row are not
    ((0.0002, 0.0002, 0.006, 0.0002), 0.0002, 6),
    ((0.0002,), 0.0002, 3),
    ((0.01,), 0.0, 6),  # nothing to compare with: for the time given
    ((0.01,), 0.002, 6),  # never as before
    ((1.0,), 1.0, 1),  # longer than that
    ((1e-6,), 0.0, 100),
])  # fmt: skip
def test_windows_begin_when_calls_take_what_they_usually_do(seconds, usual, calls):
    timer = Script(*seconds)
    assert warm_up(timer, 0.06, usual) == min(seconds)
    assert timer.calls in (calls, calls + 1)  # a sum of seconds is rounded


def test_calls_that_were_late_do_not_make_a_window_short():
    timer = Script(*[0.006] * 8, 0.0002)
    effort = Effort(rounds=1, most_rounds=1, window_seconds=0.06)
    found = interleave({"a": timer}, effort, seed=0, meter=Clock([(1.0, 0.0, 0.0)]))
    assert found["a"].windows[0].calls == pytest.approx(300, rel=0.05)  # of 0.2 ms each
