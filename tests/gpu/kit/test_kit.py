"""Tests of the suite's own parts: `python3 -m unittest discover -s tests/gpu/kit -t tests/gpu`."""
import contextlib
import copy
import importlib
import io
import json
import pathlib
import re
import tempfile
import types
import unittest

from kit import compare, record, stats
from programs import frameworks as works
from stages import frameworks, overhead, pytorch, workloads

CARD = {
    "facts": {"tables": {
        "memory, MiB": [
            {"what": "first context", "cuda": None, "process": 64.0, "device": 64.0},
            {"what": "cuMemAlloc", "cuda": 64.0, "process": 64.0, "device": 64.0},
        ],
        "costs": [{"what": "NVML, utilisation", "value": 900.0, "unit": "us"}],
    }},
    "probes": {"tables": {
        "sweep": [{"slice_us": 0, "together": 0.99}, {"slice_us": 500, "together": 0.9, "lost_a_switch_us": 55.0}],
        "stops": [{"method": "channels disabled", "stop": "ok", "stayed_stopped": True}],
    }},
    "overhead": {"tables": {"calls, preload": [{"call": "launch", "bare_ns": 2000.0}]}},
}
ROOT = pathlib.Path(__file__).resolve().parents[3]


class Compare(unittest.TestCase):
    def test_like_is_like(self):
        self.assertEqual(compare.differences(CARD, copy.deepcopy(CARD)), [])
        self.assertIn("launch (calls, preload): 2000 ns there, 2000 ns here", list(compare.shown(CARD, CARD)))

    def test_each_difference_is_named_with_where_to_set_it(self):
        other = copy.deepcopy(CARD)
        rows = other["facts"]["tables"]["memory, MiB"]
        rows[0]["process"] = 480.0
        rows[1]["process"] = None
        rows[1]["device"] = 65.9  # within a page
        other["facts"]["tables"]["costs"][0]["value"] = 2.0  # only shown
        probes = other["probes"]["tables"]
        probes["sweep"][1]["lost_a_switch_us"] = 100.0
        probes["stops"][0]["stop"] = "0x56 not supported"
        found = compare.differences(CARD, other)
        self.assertEqual(len(found), 4, found)
        self.assertEqual(found[0], 'first context, process: 64.00 MiB on the card, 480.00 MiB simulated (sim/device/config.rs: "first")')
        self.assertTrue(any("nothing told" in line for line in found))
        self.assertTrue(any("change from one process" in line and '"switch"' in line for line in found))
        self.assertTrue(any("ok on the card, 0x56 not supported simulated" in line for line in found))

    def test_what_one_lacks_is_not_compared(self):
        self.assertEqual(compare.differences(CARD, {}), [])
        self.assertEqual(len(compare.unasked({})), len(compare.FIGURES))

    def test_every_figure_is_set_where_it_is_said_to_be(self):
        for figure in compare.FIGURES:
            path = ROOT / figure.file
            self.assertTrue(path.exists(), figure)
            self.assertTrue(not figure.word or figure.word in path.read_text(), figure)
        names = [figure.name for figure in compare.FIGURES]
        self.assertEqual(len(names), len(set(names)))

    def test_cards_are_found_by_their_facts(self):
        with tempfile.TemporaryDirectory() as root:
            for name in ("2026-b", "2026-a"):
                (pathlib.Path(root) / name).mkdir()
            (pathlib.Path(root) / "2026-a" / "facts.json").write_text("{}")
            self.assertEqual([path.name for path in compare.recorded(root)], ["2026-a"])


class Stages(unittest.TestCase):
    def test_each_stage_is_there_and_each_case_has_its_program(self):
        runner = (ROOT / "tests/gpu/run").read_text()
        names = re.findall(r'"(\w+)"', runner[runner.index("STAGES = [") : runner.index("]", runner.index("STAGES = ["))])
        files = {path.stem for path in (ROOT / "tests/gpu/stages").glob("*.py")} - {"__init__"}
        self.assertEqual(set(names), files)
        readme = (ROOT / "tests/gpu/README.md").read_text()
        for name in names:
            self.assertIn(f"`{name}`", readme)
            self.assertTrue(callable(importlib.import_module(f"stages.{name}").run))
        cases = frameworks.CASES + pytorch.CASES
        for work in [name for name, _ in cases] + ["torch_fill"]:
            self.assertIn(work, works.WORK)
        for _, word in overhead.WORKLOADS + workloads.WORKLOADS:
            self.assertIn(f'"{word}":', (ROOT / "tests/gpu/programs/torch_work.py").read_text())


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

    def test_no_round_is_begun_that_has_no_time(self):
        a, b = stats.abba(5, lambda: 1, lambda: 2, seconds=-1)
        self.assertEqual((a, b), ([1, 1], [2, 2]))

    def test_the_interval_holds_the_ratio(self):
        ratio, low, high = stats.ratio([10, 11, 9, 10], [20, 22, 18, 21])
        self.assertTrue(low <= ratio <= high and 1.9 < ratio < 2.2)
        self.assertEqual(stats.percentile([5, 1, 3], 0.99), 5)

    def test_rounds_are_compared_each_by_itself(self):
        ratio, low, high = stats.paired([1.01, 1.02, 1.03, 5.0])
        self.assertTrue(low <= ratio <= high and ratio == 1.025, (ratio, low, high))


if __name__ == "__main__":
    unittest.main()
