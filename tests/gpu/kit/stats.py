"""Comparing two ways of doing one thing on a machine that is never quite idle.

Runs are interleaved A B B A, so that a drift of the machine meets both alike; a difference is given with a
confidence interval from resampling the pairs, never as two numbers of two runs.
"""
import random
import time


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def abba(rounds, first, second, seconds=None):
    """Calls both `2 * rounds` times, interleaved; gives the two lists of what they answered. With `seconds` it begins no round that
    would end later than that, but does one in any case."""
    a, b, start, longest = [], [], time.monotonic(), 0.0
    for _ in range(rounds):
        begun = time.monotonic()
        if seconds is not None and a and begun - start + longest > seconds:
            break
        a.append(first())
        b.append(second())
        b.append(second())
        a.append(first())
        longest = max(longest, time.monotonic() - begun)
    return a, b


def ratio(a, b, rounds=2000, seed=1):
    """median(b) / median(a), and the 95 % interval of it: (ratio, low, high)."""
    chance = random.Random(seed)
    resampled = sorted(
        median([chance.choice(b) for _ in b]) / median([chance.choice(a) for _ in a]) for _ in range(rounds)
    )
    return median(b) / median(a), resampled[int(rounds * 0.025)], resampled[int(rounds * 0.975)]


def paired(ratios, rounds=2000, seed=1):
    """The median of ratios that were each taken in one round, and its 95 % interval: (ratio, low, high)."""
    chance = random.Random(seed)
    resampled = sorted(median([chance.choice(ratios) for _ in ratios]) for _ in range(rounds))
    return median(ratios), resampled[int(rounds * 0.025)], resampled[int(rounds * 0.975)]


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
