"""Which tests run, and what is printed of each."""
import sys
import time
import unittest


class Lines(unittest.TextTestResult):
    """One line a test, with its seconds."""

    def startTest(self, test):
        unittest.TestResult.startTest(self, test)
        self.began = time.monotonic()

    def line(self, word, test, why=""):
        name, took = test.id().removeprefix("cases."), time.monotonic() - self.began
        print(f"{word:4} {name} ({took:.0f} s){': ' + why if why else ''}", flush=True)

    def addSuccess(self, test):
        unittest.TestResult.addSuccess(self, test)
        self.line("ok", test)

    def addSkip(self, test, why):
        unittest.TestResult.addSkip(self, test, why)
        self.line("SKIP", test, why)

    def addError(self, test, error):
        unittest.TestResult.addError(self, test, error)
        self.line("FAIL", test, self.errors[-1][1])

    def addFailure(self, test, error):
        unittest.TestResult.addFailure(self, test, error)
        self.line("FAIL", test, self.failures[-1][1])

    def addSubTest(self, test, part, error):
        if error:
            self.addError(part, error)


def chosen(suite, words):
    """Tests whose names have one of the words; without words all but those that run on request. A file that cannot be
    loaded is a test that fails."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from chosen(test, words)
        elif isinstance(test, unittest.loader._FailedTest):
            yield test
        elif any(word in test.id() for word in words) if words else not getattr(test, "on_request", False):
            yield test


def judge(cases, words):
    """Runs the tests of a directory, prints what came of them, and returns the exit status."""
    found = unittest.defaultTestLoader.discover(str(cases), "*.py", str(cases.parent))
    result = Lines(unittest.runner._WritelnDecorator(sys.stderr), False, 0)
    unittest.TestSuite(chosen(found, words)).run(result)
    # A test whose cleanup fails, too, has two errors, and one with parts has one for each.
    failed = len({getattr(test, "test_case", test).id() for test, _ in result.errors + result.failures})
    skipped = len(result.skipped)
    print(f"{result.testsRun - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not result.testsRun else 0
