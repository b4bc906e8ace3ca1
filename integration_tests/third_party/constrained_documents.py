"""Documents that a worker generates under JSON Schemas, and an independent validator's verdicts."""

import collections
import concurrent.futures
import dataclasses
import decimal
import json
import pathlib
import re

import jsonschema

CORPUS = "testing/schemas/corpus.jsonl"
# The validator divides decimals by `multipleOf`, and random numbers have as many digits as they like.
decimal.getcontext().prec = 2000


@dataclasses.dataclass
class Case:
    """A schema with documents that it accepts and documents that it refuses."""

    name: str
    # As JSON, with properties in the schema's order.
    schema: str
    valid: list
    invalid: list


def parse(text):
    """A JSON document; fractions are decimal, so that 0.3 is a multiple of 0.1."""
    return json.loads(text, parse_float=decimal.Decimal)


def read_corpus(root):
    cases = []
    for line in (pathlib.Path(root) / CORPUS).read_text(encoding="utf-8").splitlines():
        read = json.loads(line)
        schema = json.dumps(read["schema"], ensure_ascii=False, separators=(",", ":"))
        decimals = parse(line)
        cases.append(Case(read["name"], schema, decimals["valid"], decimals["invalid"]))
    return cases


def validator(schema):
    kind = jsonschema.Draft202012Validator
    return kind(parse(schema), format_checker=kind.FORMAT_CHECKER)


def complaint(checker, text):
    """Why the text is no document that the validator accepts; None if it is one."""
    try:
        document = parse(text)
    except ValueError as error:
        return f"is no JSON: {error}"
    error = jsonschema.exceptions.best_match(checker.iter_errors(document))
    return error and error.message


def misjudged(cases):
    """The documents of the corpus that the validator calls other than the corpus does."""
    wrong = []
    for case in cases:
        checker = validator(case.schema)
        wrong += [f"{case.name}: refuses {d}" for d in case.valid if not checker.is_valid(d)]
        wrong += [f"{case.name}: accepts {d}" for d in case.invalid if checker.is_valid(d)]
    return wrong


@dataclasses.dataclass
class Tally:
    """Documents by how they ended, and the invalid ones among the complete."""

    ends: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    # (name of the schema, seed, text, complaint)
    invalid: list = dataclasses.field(default_factory=list)
    # (name of the schema, status) of requests that failed.
    failed: list = dataclasses.field(default_factory=list)
    tokens: int = 0
    forced: int = 0

    @property
    def complete(self):
        return self.ends["EOG"]

    @property
    def total(self):
        return sum(self.ends.values()) + len(self.failed)

    def add(self, other):
        self.ends += other.ends
        self.invalid += other.invalid
        self.failed += other.failed
        self.tokens += other.tokens
        self.forced += other.forced

    def __str__(self):
        ends = ", ".join(f"{count} {reason}" for reason, count in sorted(self.ends.items()))
        return (
            f"{self.total} documents: {ends}; {len(self.invalid)} of the complete are invalid,"
            f" {len(self.failed)} requests failed; {self.tokens} tokens, {self.forced} forced"
        )


def generate(worker, case, request):
    """Generates documents with one request of orcd.v1, whose constraint is added, and validates the
    complete ones."""
    tally = Tally()
    samples = request.get("samples", 1)
    texts = [""] * samples
    end = None
    for event in worker.call(
        "orcd.v1.Worker", "Generate", constraint={"json_schema": case.schema}, **request
    ):
        texts[event.delta.sample] += event.delta.text
        if event.HasField("finished"):
            end = event.finished
    enum = worker.pool.FindEnumTypeByName("orcd.v1.FinishReason").values_by_number
    reasons = [sample.reason for sample in end.samples] or [end.reason]
    checker = validator(case.schema)
    for sample, (text, reason) in enumerate(zip(texts, reasons)):
        name = enum[reason].name.removeprefix("FINISH_REASON_")
        tally.ends[name] += 1
        if name == "EOG" and (wrong := complaint(checker, text)):
            tally.invalid.append((case.name, request["sampling"]["seed"] + sample, text, wrong))
    tally.tokens = end.usage.generated_tokens
    tally.forced = end.usage.forced_tokens
    return tally


def generate_all(worker, cases, request_of, at_once):
    """Generates with `request_of(case)` for each case, `at_once` requests at a time."""
    tally = Tally()

    def one(case):
        try:
            return generate(worker, case, request_of(case))
        except Exception as error:  # A failure is a result that the caller judges.
            return Tally(failed=[(case.name, re.sub(r"\s+", " ", str(error))[:300])])

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for part in pool.map(one, cases):
            tally.add(part)
    return tally


def chat_request(case, seed, max_tokens, samples=1, temperature=0.8):
    """A request that tells a real model the schema, or how it begins if it is long."""
    ask = "Make up one JSON document that follows this JSON Schema. Answer with the JSON alone.\n"
    return {
        "chat": {"messages": [{"role": "CHAT_ROLE_USER", "content": ask + case.schema[:1500]}]},
        "sampling": {"seed": seed, "temperature": temperature},
        "stop": {"max_tokens": max_tokens},
        "samples": samples,
    }


def bare_request(seed, max_tokens, samples=1):
    """A request for a backend that draws tokens at random."""
    return {
        "tokens": {"ids": [1]},
        "sampling": {"seed": seed},
        "stop": {"max_tokens": max_tokens},
        "samples": samples,
    }
