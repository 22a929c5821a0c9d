"""Tests of the suite's own parts: `python3 -m unittest discover -s tests/gpu/kit -t tests/gpu`."""
import contextlib
import copy
import io
import json
import pathlib
import tempfile
import types
import unittest

from kit import compare, record, stats

CARD = {
    "facts": {"tables": {"memory, MiB": [
        {"what": "first context", "cuda": None, "process": 64.0, "device": 64.0},
        {"what": "cuMemAlloc", "cuda": 64.0, "process": 64.0, "device": 64.0},
    ]}},
    "probes": {"tables": {"native switching": [{"contexts": 1, "together": 0.99}, {"contexts": 2, "together": 0.96}]}},
    "overhead": {"tables": {"calls, preload": [{"call": "launch", "bare_ns": 2000.0}]}},
}


class Compare(unittest.TestCase):
    def test_like_is_like(self):
        self.assertEqual(compare.differences(CARD, copy.deepcopy(CARD)), [])
        self.assertEqual(list(compare.calls(CARD, CARD)), [("launch (calls, preload)", 2000.0, 2000.0)])

    def test_each_difference_is_named(self):
        other = copy.deepcopy(CARD)
        rows = other["facts"]["tables"]["memory, MiB"]
        rows[0]["process"] = 480.0
        rows[1]["process"] = None
        rows[1]["device"] = 65.9  # within a page
        other["probes"]["tables"]["native switching"][1]["together"] = 0.8
        found = compare.differences(CARD, other)
        self.assertEqual(len(found), 3, found)
        self.assertIn("first context, process: 64.0 MiB on the card, 480.0 MiB simulated", found)
        self.assertTrue(any("nothing told" in line for line in found))
        self.assertTrue(any("switching" in line for line in found))

    def test_what_one_lacks_is_not_compared(self):
        self.assertEqual(compare.differences(CARD, {}), [])

    def test_cards_are_found_by_their_facts(self):
        with tempfile.TemporaryDirectory() as root:
            for name in ("2026-b", "2026-a"):
                (pathlib.Path(root) / name).mkdir()
            (pathlib.Path(root) / "2026-a" / "facts.json").write_text("{}")
            self.assertEqual([path.name for path in compare.recorded(root)], ["2026-a"])


class Record(unittest.TestCase):
    def result(self, out, sim):
        place = types.SimpleNamespace(quick=True, sim=sim, gpu=lambda: {})
        return record.Result(pathlib.Path(out), "stage", place)

    def test_a_missed_figure_fails_on_a_card_only(self):
        for sim in (True, False):
            with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
                result = self.result(out, sim)
                result.promise("p99", False, "much")
                self.assertEqual(result.is_failed(), not sim)
                result.check("an answer", True, "")
                self.assertEqual(result.is_failed(), not sim)
                result.check("an answer", False, "")
                self.assertTrue(result.is_failed())

    def test_only_a_whole_stage_has_its_result(self):
        with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
            result = self.result(out, True)
            result.row("t", a=1, b=None)
            self.assertFalse(result.exists())
            result.close(1.0)
            self.assertTrue(result.exists())
            self.assertEqual(json.loads(result.path.read_text())["tables"], {"t": [{"a": 1, "b": None}]})


class Stats(unittest.TestCase):
    def test_a_drift_meets_both_alike(self):
        clock = iter(range(100))
        a, b = stats.abba(3, lambda: next(clock), lambda: next(clock))
        self.assertEqual(sum(a), sum(b))

    def test_the_interval_holds_the_ratio(self):
        ratio, low, high = stats.ratio([10, 11, 9, 10], [20, 22, 18, 21])
        self.assertTrue(low <= ratio <= high and 1.9 < ratio < 2.2)
        self.assertEqual(stats.percentile([5, 1, 3], 0.99), 5)


if __name__ == "__main__":
    unittest.main()
