"""Tests skipped-tests on logs as ctest 3.25 writes them."""

import importlib.machinery
import importlib.util
import pathlib
import unittest
from unittest import mock

TOOL = pathlib.Path(__file__).resolve().parent / "skipped-tests"
loader = importlib.machinery.SourceFileLoader("skipped_tests", str(TOOL))
tool = importlib.util.module_from_spec(importlib.util.spec_from_loader("skipped_tests", loader))
loader.exec_module(tool)

LOG = """Start testing: Nov 25 21:00 UTC
----------------------------------------------------------
1/3 Testing: runtime_text_test
1/3 Test: runtime_text_test
Output:
----------------------------------------------------------
[ RUN      ] TokenizerOracleTest.Agrees
../../runtime/text/tokenizer_test.cc:374: Skipped
ORCD_ORACLE_DIR is not set

[  SKIPPED ] TokenizerOracleTest.Agrees (0 ms)
<end of output>
2/3 Testing: runtime_gguf_test
Output:
../../runtime/gguf/mapped_file_test.cc:96: Skipped
root may read everything

3/3 Testing: third_party_kubeprobe
Output:
SKIPPED: one of grpcurl could not be had, see above
4/4 Testing: third_party_tokenizers
Ran 7 tests in 0.001s

OK (skipped=2)
"""


class SkippedTestsTest(unittest.TestCase):
    def exit_code(self, log, **environment):
        with (
            mock.patch.object(tool.pathlib.Path, "read_text", lambda *_, **__: log),
            mock.patch.object(tool.sys, "argv", ["skipped-tests", "release"]),
            mock.patch.dict(tool.os.environ, environment, clear=True),
            mock.patch("builtins.print"),
        ):
            return tool.main()

    def test_every_kind_of_skip_is_found(self):
        self.assertEqual(
            tool.skips(LOG),
            [
                ("runtime_text_test", "ORCD_ORACLE_DIR is not set"),
                ("runtime_gguf_test", "root may read everything"),
                ("third_party_kubeprobe", "one of grpcurl could not be had, see above"),
                ("third_party_tokenizers", "2 of its cases; run it with --verbose"),
            ],
        )

    def test_skips_fail_only_where_all_are_required(self):
        self.assertEqual(self.exit_code(LOG), 0)
        self.assertEqual(self.exit_code(LOG, ORCD_REQUIRE_ALL="1"), 1)

    def test_each_missing_thing_fails_alone(self):
        for reason in ["ORCD_ORACLE_DIR is not set", "/m.gguf is not there; fetch it with tools"]:
            log = f"1/1 Testing: a_test\nx_test.cc:1: Skipped\n{reason}\n"
            self.assertEqual(self.exit_code(log, ORCD_REQUIRE_ALL="1"), 1, reason)

    def test_what_the_machine_decides_passes(self):
        log = "1/1 Testing: a_test\nx_test.cc:1: Skipped\nroot may read everything\n"
        self.assertEqual(self.exit_code(log, ORCD_REQUIRE_ALL="1"), 0)
        self.assertEqual(self.exit_code("", ORCD_REQUIRE_ALL="1"), 0)


if __name__ == "__main__":
    unittest.main()
