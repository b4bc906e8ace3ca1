"""Whatever a worker generates under a JSON Schema, an independent validator accepts.

    constraints_test.py BIN_DIR SOURCE_DIR

The backend draws tokens at random among those that the constraint allows, which reaches documents
that no model would write. The validator is the package jsonschema, with its checks of formats.
"""

import pathlib
import sys
import unittest

import constrained_documents as documents
import grpc
from reflected_worker import reflected
from worker_under_test import NANO, WorkerUnderTest

BIN_DIR = None
SOURCE_DIR = None
SAMPLES = 8
MAX_TOKENS = 400
AT_ONCE = 8
# Most of the others are strings without a bound, whose end is one token of a thousand.
LEAST_COMPLETE = 0.8


class ConstraintsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cases = documents.read_corpus(SOURCE_DIR)
        cls.worker = WorkerUnderTest(BIN_DIR, ["--backend", "null", "--max-seqs", "64"])
        cls.addClassCleanup(cls.worker.close)
        cls.reflected, channel = reflected(cls.worker.address)
        cls.addClassCleanup(channel.close)
        list(cls.reflected.call("orcd.v1.Worker", "Load", model=NANO))

    def test_this_worker_has_constraints(self):
        self.assertTrue(self.reflected.status().model.constraints_supported)

    def test_the_validator_agrees_with_the_corpus(self):
        self.assertEqual(len(self.cases), 200)
        for case in self.cases:
            checker = documents.validator(case.schema)
            checker.check_schema(checker.schema)
        self.assertEqual(documents.misjudged(self.cases), [])

    def test_every_complete_document_is_valid(self):
        tally = documents.generate_all(
            self.reflected,
            self.cases,
            lambda case: documents.bare_request(len(case.name), MAX_TOKENS, SAMPLES),
            AT_ONCE,
        )
        print(tally)
        self.assertEqual(tally.failed, [])
        self.assertEqual(tally.invalid, [])
        self.assertEqual(tally.total, len(self.cases) * SAMPLES)
        self.assertLessEqual(set(tally.ends), {"EOG", "MAX_TOKENS"})
        self.assertGreaterEqual(tally.complete, LEAST_COMPLETE * tally.total)
        self.assertGreater(tally.forced, 0)

    def test_a_cut_document_is_not_called_complete(self):
        # No document of these schemas has fewer tokens than this.
        for name in ("order", "wide_50", "nested_objects_20"):
            case = next(case for case in self.cases if case.name == name)
            tally = documents.generate(
                self.reflected, case, documents.bare_request(seed=1, max_tokens=5, samples=3)
            )
            self.assertEqual(tally.ends, {"MAX_TOKENS": 3})

    def test_the_same_seed_gives_the_same_document(self):
        case = next(case for case in self.cases if case.name == "person")
        request = documents.bare_request(seed=5, max_tokens=300)
        constraint = {"json_schema": case.schema}
        texts = [self.reflected.generate(constraint=constraint, **request) for _ in range(2)]
        self.assertEqual(texts[0], texts[1])

    def test_refusals_name_the_keyword(self):
        for schema, pointer in [
            ('{"type":"array","uniqueItems":true}', "/uniqueItems"),
            ('{"properties":{"a":{"not":{"type":"string"}}}}', "/properties/a/not"),
            ('{"if":{"type":"string"},"then":{"minLength":1}}', "/if"),
            ('{"$defs":{"x":{"contains":{}}},"$ref":"#/$defs/x"}', "/$defs/x/contains"),
        ]:
            with self.subTest(schema), self.assertRaises(grpc.RpcError) as caught:
                request = documents.bare_request(seed=1, max_tokens=5)
                self.reflected.generate(constraint={"json_schema": schema}, **request)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
            self.assertIn(pointer, caught.exception.details())


if __name__ == "__main__":
    BIN_DIR = sys.argv.pop(1)
    SOURCE_DIR = pathlib.Path(sys.argv.pop(1))
    unittest.main()
