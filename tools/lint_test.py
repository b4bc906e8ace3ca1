"""Tests which files tools/lint gives to clang-tidy together."""

import importlib.machinery
import importlib.util
import pathlib
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parent / "lint"
loader = importlib.machinery.SourceFileLoader("lint", str(TOOL))
tool = importlib.util.module_from_spec(importlib.util.spec_from_loader("lint", loader))
loader.exec_module(tool)


class BatchesTest(unittest.TestCase):
    def batches(self, *texts, options=""):
        """Indices of the files of each batch; `options` has one letter per file."""
        with tempfile.TemporaryDirectory() as folder:
            entries = []
            for n, text in enumerate(texts):
                file = f"{folder}/{n}.cc"
                pathlib.Path(file).write_text(text, encoding="utf-8")
                command = f"g++ -D{options[n : n + 1] or 'X'} -o {n}.o -c {file}"
                entries.append({"file": file, "command": command})
            found = [[entries.index(e) for e in batch] for batch in tool.batches(entries)]
        return sorted(found)

    def test_files_go_by_sixteens(self):
        texts = [f"int F{n}() {{ return {n}; }}\n" for n in range(17)]
        self.assertEqual(self.batches(*texts), [list(range(16)), [16]])

    def test_other_options_are_another_batch(self):
        self.assertEqual(self.batches("", "", "", options="ABA"), [[0, 2], [1]])

    def test_one_name_is_defined_once_in_a_batch(self):
        for line in [
            "constexpr int kSize = 3;",
            "struct Case {",
            "std::string PathOf(int n) {",
            "MATCHER_P(IsFine, n, \"\") {",
            "using Clock = int;",
            "const char* kNames[] = {",
        ]:
            # The text uses each name, so only the clash keeps a file alone.
            text = f"{line}\n// kSize Case PathOf IsFine Clock kNames\n"
            self.assertEqual(self.batches(text, "int G();\n", text), [[0, 1], [2]], line)

    def test_what_clang_looks_for_in_the_main_file_alone_is_not_lost(self):
        for name, unused in [
            ("Eq", "using testing::Eq;\n"),
            ("v1", "namespace v1 = orcd::v1;\n"),
            ("kUnused", "constexpr int kUnused = 3;\n"),
        ]:
            self.assertEqual(self.batches("", unused, ""), [[0, 2], [1]], unused)
            used = f"{unused}int f({name} x);\n"
            self.assertEqual(self.batches("", used, ""), [[0, 1, 2]], used)


if __name__ == "__main__":
    unittest.main()
