#!/usr/bin/env python3
"""Tests make-results on small trees, and that bench/RESULTS.md is what bench/results says."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parent / "make-results"

RECORD = {
    "cell": "7B F16, one stream",
    "figure": 284,
    "unit": "tok/s",
    "date": "2026-11-25",
    "commit": "0f4150d",
    "machine": "H200",
    "command": "engine_bench MODEL",
    "headline": True,
}
GROUP = {"title": "One stream", "order": 1, "records": [RECORD]}


class MakeResultsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.page = self.root / "bench" / "RESULTS.md"
        (self.root / "bench" / "results").mkdir(parents=True)
        self.write("machines.json", {"H200": "a GPU", "H100": "another GPU"})

    def write(self, name, value):
        text = value if isinstance(value, str) else json.dumps(value)
        (self.root / "bench" / "results" / name).write_text(text, encoding="utf-8")

    def run_tool(self, *flags, root=None):
        return subprocess.run(
            [sys.executable, str(TOOL), "--root", str(root or self.root), *flags],
            capture_output=True,
            text=True,
            check=False,
        )

    def make(self, *groups):
        """The page of one file with `groups`."""
        self.write("engine.json", list(groups))
        result = self.run_tool()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return self.page.read_text(encoding="utf-8")

    def refused(self, *groups):
        """Why `groups` are refused. Nothing is written then."""
        self.write("engine.json", list(groups))
        before = self.page.read_text(encoding="utf-8") if self.page.exists() else None
        result = self.run_tool()
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        after = self.page.read_text(encoding="utf-8") if self.page.exists() else None
        self.assertEqual(before, after)
        return result.stdout

    def refused_record(self, **fields):
        """Why RECORD with these fields replaced is refused. None removes a field."""
        record = {name: value for name, value in (RECORD | fields).items() if value is not None}
        return self.refused(GROUP | {"records": [record]})

    def test_the_page_in_the_tree_is_what_the_files_say(self):
        result = self.run_tool("--check", root=TOOL.parent.parent)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_a_headline_is_a_row(self):
        peers = [{"name": "vLLM", "figure": 210, "note": "bf16"}]
        page = self.make(GROUP | {"records": [RECORD | {"share": 0.93, "peers": peers}]})
        self.assertIn("## One stream\nH200, 2026-11-25, 0f4150d.\n`engine_bench MODEL`\n", page)
        self.assertIn("| what | tok/s | share of the floor | vLLM |\n", page)
        self.assertIn("| 7B F16, one stream | 284 | 0.93 | 210 (bf16) |\n", page)
        self.assertIn("- H200: a GPU\n", page)
        self.assertNotIn("H100", page)

    def test_what_is_no_headline_is_counted_only(self):
        other = RECORD | {"cell": "7B Q8_0, one stream", "headline": False}
        page = self.make(GROUP | {"records": [RECORD, other]})
        self.assertNotIn("Q8_0", page)
        self.assertIn("The 1 headline figures of the 2 measured.", page)
        self.assertIn("[engine.json](results/engine.json) 2", page)

    def test_digits_are_kept(self):
        records = []
        for i, text in enumerate(["1.000", "6.0e-6", "138230", "0.90"]):
            record = RECORD | {"cell": f"cell {i}", "figure": "FIGURE"}
            records.append(json.dumps(record).replace('"FIGURE"', text))
        group = json.dumps(GROUP | {"records": []})
        self.write("engine.json", "[" + group.replace("[]", f"[{', '.join(records)}]") + "]")
        self.assertEqual(self.run_tool().returncode, 0)
        page = self.page.read_text(encoding="utf-8")
        for i, text in enumerate(["1.000", "6.0e-6", "138,230", "0.90"]):
            self.assertIn(f"| cell {i} | {text} |", page)

    def test_units_that_differ_stand_in_the_rows(self):
        time = RECORD | {"cell": "first token", "unit": "ms", "range": [1, 2], "bound": "≤ 3"}
        del time["figure"]
        page = self.make(GROUP | {"records": [RECORD, time]})
        self.assertIn("| 7B F16, one stream | 284 tok/s |  |\n", page)
        self.assertIn("| first token | 1 to 2 ms | ≤ 3 |\n", page)

    def test_a_missed_bound_is_marked(self):
        for figure, bound, missed in [
            ({"figure": 284}, "≥ 285", True),
            ({"figure": 284}, "≥ 284", False),
            ({"figure": 18600}, "≥ 20,000", True),
            ({"runs": [1.2, 1.6]}, "≤ 1.5", True),
            ({"range": [1.2, 1.5]}, "≤ 1.5", False),
            ({"at_most": 0.001}, "≤ 1e-4", True),
            ({"figure": 284}, "none lost", False),
        ]:
            with self.subTest(figure=figure, bound=bound):
                record = RECORD | {"bound": bound} | figure
                if "figure" not in figure:
                    del record["figure"]
                page = self.make(GROUP | {"records": [record]})
                self.assertEqual("✗ | " in page, missed)

    def test_records_inherit_from_their_group(self):
        record = {"cell": "7B F16", "figure": 1, "headline": True, "machine": "H100"}
        shared = {name: RECORD[name] for name in ("unit", "date", "commit", "machine", "command")}
        page = self.make(GROUP | shared | {"records": [record]})
        self.assertIn("H100, 2026-11-25, 0f4150d.", page)

    def test_groups_of_a_section_share_a_table(self):
        first = GROUP | {"title": "B", "section": "Both", "order": 2}
        second = GROUP | {"title": "A", "section": "Both", "order": 1}
        second |= {"records": [RECORD | {"cell": "another", "commit": "1a0b609"}]}
        page = self.make(first, second)
        self.assertEqual(page.count("## Both"), 1)
        self.assertIn("| another | 284 | 1a0b609 |\n| 7B F16, one stream | 284 | 0f4150d |\n", page)

    def test_refuses_what_is_no_record(self):
        self.assertIn("unknown field 'figrue'", self.refused_record(figrue=1))
        self.assertIn("has no cell", self.refused_record(cell=None))
        self.assertIn("has no unit", self.refused_record(unit=None))
        self.assertIn("needs exactly one of", self.refused_record(figure=None))
        self.assertIn("needs exactly one of", self.refused_record(runs=[1, 2]))
        self.assertIn("figure is not a number", self.refused_record(figure="284"))
        self.assertIn("figure is not a number", self.refused_record(figure=True))
        self.assertIn("not [least, greatest]", self.refused_record(figure=None, range=[2, 1]))
        self.assertIn("two or more numbers", self.refused_record(figure=None, runs=[1]))
        self.assertIn("not YYYY-MM-DD", self.refused_record(date="25.11.2026"))
        self.assertIn("hexadecimal", self.refused_record(commit="HEAD"))
        self.assertIn("not in machines.json", self.refused_record(machine="A100"))
        self.assertIn("has no name", self.refused_record(peers=[{"figure": 1}]))
        self.assertIn("before: needs exactly one", self.refused_record(before={"ratio": 1}))

    def test_refuses_what_is_no_group(self):
        self.assertIn("needs a title and records", self.refused({"title": "One stream"}))
        self.assertIn("has that title, too", self.refused(GROUP, GROUP))
        self.assertIn("no order", self.refused({"title": "A", "records": [RECORD]}))
        self.write("more.json", {"title": "not in a list"})
        self.assertIn("is not a list of groups", self.refused(GROUP))

    def test_refuses_a_figure_without_its_origin_unless_it_says_so(self):
        for name in ("date", "commit", "machine", "command"):
            self.assertIn(f"has no {name}", self.refused_record(**{name: None}))
            record = {key: value for key, value in RECORD.items() if key != name}
            self.make(GROUP | {"records": [record | {"unknown": [name]}]})
        self.assertIn("given and named", self.refused_record(unknown=["date"]))

    def test_refuses_a_figure_that_stands_in_two_places(self):
        again = {"title": "Again", "order": 2, "records": [RECORD | {"headline": False}]}
        self.assertIn("'One stream' has this figure, too", self.refused(GROUP, again))
        later = again | {"records": [RECORD | {"commit": "1a0b609"}]}
        self.assertIn("'One stream' has this headline, too", self.refused(GROUP, later))
        twice = json.dumps([GROUP]).replace("284", '284, "figure": 285')
        self.write("engine.json", twice)
        self.assertIn("'figure' 2 times", self.run_tool().stdout)

    def test_refuses_a_page_that_is_too_long(self):
        records = [RECORD | {"cell": f"cell {i}"} for i in range(150)]
        self.assertIn("150 are allowed", self.refused(GROUP | {"records": records}))
        self.make(GROUP | {"records": records[:100]})

    def test_check_finds_a_page_that_is_not_current(self):
        self.make(GROUP)
        self.assertEqual(self.run_tool("--check").returncode, 0)
        written = self.page.read_text(encoding="utf-8")
        self.page.write_text(written.replace("284", "285"), encoding="utf-8")
        result = self.run_tool("--check")
        self.assertEqual(result.returncode, 1)
        self.assertIn("run tools/make-results", result.stdout)
        self.assertIn("285", self.page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
