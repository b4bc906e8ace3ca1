#!/usr/bin/env python3
"""Tests plot-serve on results as serve_bench writes them."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

PLOT = pathlib.Path(__file__).resolve().parent / "plot-serve"
SVG = "{http://www.w3.org/2000/svg}"


def result(seconds):
    """A result with durations of `seconds`, all equally likely."""
    times = {
        "distribution": [[s, (i + 1) / len(seconds)] for i, s in enumerate(sorted(seconds))],
    }
    return {
        "call": "many",
        "rate": 12.5,
        "tokens_per_second": 1000.0,
        "time_to_first_token": times,
        "between_tokens": times,
        "end_to_end": times,
    }


class PlotServeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def plot(self, *results):
        """Plots results and returns the SVG's root element."""
        files = []
        for i, values in enumerate(results):
            files.append(self.folder / f"run<{i}>.json")
            files[-1].write_text(json.dumps(values))
        out = self.folder / "out.svg"
        subprocess.run([sys.executable, PLOT, out, *files], check=True)
        return xml.etree.ElementTree.parse(out).getroot()

    def test_has_a_curve_for_each_file_in_each_panel(self):
        root = self.plot(result([0.001, 0.002, 0.5]), result([0.01]))
        self.assertEqual(len(root.findall(f"{SVG}polyline")), 2 * 3)
        texts = [text.text for text in root.findall(f"{SVG}text")]
        self.assertIn("run<0>: many, 12.5 requests/s, 1000 tok/s", texts)

    def test_curves_rise_to_all_and_to_the_right(self):
        line = self.plot(result([0.001, 0.01, 0.1, 1])).find(f"{SVG}polyline")
        points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        self.assertEqual(points, sorted(points, key=lambda p: (p[0], -p[1])))
        # All decades have the same width.
        steps = [b[0] - a[0] for a, b in zip(points, points[1:])]
        self.assertLess(max(steps) - min(steps), 0.2)

    def test_takes_results_in_which_nothing_came_to_an_end(self):
        self.assertEqual(len(self.plot(result([])).findall(f"{SVG}polyline")), 3)


if __name__ == "__main__":
    unittest.main()
