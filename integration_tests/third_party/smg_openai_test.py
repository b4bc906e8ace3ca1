"""The `openai` package gets the same results from the real model through the real smg as orcd.v1
gives.

    smg_openai_test.py BIN_DIR

The test records the messages between smg and the worker. It sends the request that smg makes of a
chat to orcd.v1 too, and compares tokens and figures with those that smg received.
"""

import json
import os
import pathlib
import struct
import sys
import time
import unittest

import grpc
import openai
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from smg_under_test import PATIENCE_S, SmgUnderTest
from wire_tap import WireTap
from worker_under_test import WorkerUnderTest

BIN_DIR = None
MODEL_FILE = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
MODEL = "coder"
MODEL_DIR = pathlib.Path(
    os.environ.get("ORCD_MODEL_CACHE") or pathlib.Path.home() / ".cache/orcd/models"
)
CHAT = [{"role": "user", "content": "Write a Python function that adds two numbers."}]
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "born": {"type": "integer", "minimum": 1000, "maximum": 2099},
        "fields": {
            "type": "array",
            "items": {"enum": ["mathematics", "poetry", "computing"]},
            "maxItems": 2,
        },
    },
    "required": ["name", "born", "fields"],
    "additionalProperties": False,
}


def as_float(number):
    """The nearest value that a float on the wire can have."""
    return struct.unpack("f", struct.pack("f", number))[0]


class Stack:
    """A worker with the real model, a recording proxy in front of it, smg in front of that, and
    clients of each."""

    def __init__(self, *worker_args):
        self._open = []
        try:
            self._build(worker_args)
        except BaseException:
            self.close()
            raise

    def _build(self, worker_args):
        # This model writes its calls as JSON in a code block.
        worker = self._keep(
            WorkerUnderTest(
                BIN_DIR,
                ["--model", MODEL_FILE, "--model-id", MODEL, "--backend", "cpu", *worker_args],
                model_dir=MODEL_DIR,
            )
        )
        self.channel = self._keep(grpc.insecure_channel(worker.address))
        self.pool = DescriptorPool(ProtoReflectionDescriptorDatabase(self.channel))
        self._await_model()
        self.tap = self._keep(WireTap(worker.address))
        self.smg = self._keep(
            SmgUnderTest(
                ["--worker-urls", f"grpc://{self.tap.address}", "--tool-call-parser", "json"]
            )
        )
        self.openai = self.smg.openai()
        self.smg.wait_for(self._serves, "smg does not serve the model")

    def _await_model(self):
        # If smg finds no model at first, it looks again after half a minute.
        deadline = time.monotonic() + PATIENCE_S
        while not self.status().HasField("model"):
            if time.monotonic() > deadline:
                raise RuntimeError("the model was not loaded")
            time.sleep(0.05)

    def _serves(self):
        # smg has the model's tokenizer a moment after it lists the worker.
        request = {"model": MODEL, "prompt": "1", "max_tokens": 1}
        return self.smg.call("POST", "/v1/completions", request)[0] == 200

    def _keep(self, part):
        self._open.append(part)
        return part

    def close(self):
        while self._open:
            self._open.pop().close()

    def message(self, name):
        return GetMessageClass(self.pool.FindMessageTypeByName(name))

    def tapped(self):
        """The only Generate call since the tap's last forget(): its request and replies."""
        ((request, replies),) = self.tap.calls("Generate")
        response = self.message("vllm.grpc.engine.GenerateResponse")
        return (
            self.message("vllm.grpc.engine.GenerateRequest").FromString(request),
            [response.FromString(reply) for reply in replies],
        )

    def orcd(self, method, request, response):
        """Calls orcd.v1 and returns the stream of replies."""
        return self.channel.unary_stream(
            f"/orcd.v1.Worker/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=self.message(response).FromString,
        )(request, timeout=PATIENCE_S)

    def status(self):
        request = self.message("orcd.v1.HealthRequest")()
        (health,) = self.orcd("Health", request, "orcd.v1.HealthResponse")
        return health.status

    def same_by_orcd(self, theirs):
        """Repeats smg's request with orcd.v1 and returns the samples' ids, logprobs, and the
        end."""
        request = self.message("orcd.v1.GenerateRequest")()
        request.tokens.ids.extend(theirs.tokenized.input_ids)
        params = theirs.sampling_params
        if params.HasField("temperature"):
            request.sampling.temperature = params.temperature
        if params.HasField("seed"):
            request.sampling.seed = params.seed
        if params.HasField("max_tokens"):
            request.stop.max_tokens = params.max_tokens
        if params.HasField("logprobs"):
            request.logprobs = params.logprobs
        request.sampling.temperature_first = True
        request.sampling.top_p = params.top_p or 1
        request.sampling.top_k = params.top_k
        request.sampling.repetition_penalty = params.repetition_penalty or 1
        request.stop.strings.extend(params.stop)
        request.stop.token_ids.extend(params.stop_token_ids)
        request.stop.ignore_eog = params.ignore_eos
        request.samples = params.n or 1
        ids = {i: [] for i in range(request.samples)}
        logprobs = []
        end = None
        for event in self.orcd("Generate", request, "orcd.v1.GenerateResponse"):
            ids[event.delta.sample].extend(event.delta.token_ids)
            logprobs.extend(event.delta.logprobs)
            if event.HasField("finished"):
                end = event.finished
        if end.WhichOneof("matched") == "token_id":
            ids[0].append(end.token_id)
        return ids, logprobs, end


class SmgOpenAiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = Stack("--max-context", "1024")
        cls.openai = cls.stack.openai

    @classmethod
    def tearDownClass(cls):
        cls.stack.close()

    def setUp(self):
        self.stack.tap.forget()

    def chat(self, **options):
        return self.openai.chat.completions.create(
            **{"model": MODEL, "messages": CHAT, "temperature": 0, **options}
        )

    def complete(self, **options):
        return self.openai.completions.create(
            **{"model": MODEL, "prompt": "def add(a, b):", "temperature": 0, **options}
        )

    def read(self, stream):
        """Text, finish reason and usage of a stream whose last event has its usage."""
        text, reason, usage = "", None, None
        for event in stream:
            for choice in event.choices:
                text += (choice.delta.content if hasattr(choice, "delta") else choice.text) or ""
                reason = choice.finish_reason or reason
            usage = event.usage or usage
        return text, reason, usage

    def assert_as_by_orcd(self, usage):
        """The tapped call's tokens, and the usage that the client received, equal orcd.v1's."""
        request, replies = self.stack.tapped()
        ids, _, end = self.stack.same_by_orcd(request)
        theirs = {i: [] for i in ids}
        completes = [reply.complete for reply in replies if reply.HasField("complete")]
        for reply in replies:
            theirs[reply.chunk.index].extend(reply.chunk.token_ids)
        for complete in completes:
            theirs[complete.index].extend(complete.output_ids)
        self.assertEqual(theirs, ids)
        self.assertEqual(sorted(c.index for c in completes), sorted(ids))
        self.assertEqual(sum(c.completion_tokens for c in completes), end.usage.generated_tokens)
        self.assertEqual(usage.completion_tokens, end.usage.generated_tokens)
        self.assertEqual(usage.prompt_tokens, end.usage.prompt_tokens)

    def test_chat_streaming_and_not(self):
        for options in ({"temperature": 0.8, "seed": 7, "top_p": 0.9}, {"temperature": 0}):
            whole = self.chat(max_tokens=16, **options)
            self.assertEqual(whole.model, MODEL)
            self.assertEqual(whole.choices[0].finish_reason, "length")
            self.assert_as_by_orcd(whole.usage)
            self.stack.tap.forget()
            text, reason, usage = self.read(
                self.chat(
                    max_tokens=16, stream=True, stream_options={"include_usage": True}, **options
                )
            )
            self.assertEqual(text, whole.choices[0].message.content)
            self.assertEqual(reason, "length")
            self.assert_as_by_orcd(usage)
            self.stack.tap.forget()

    def test_the_models_own_end(self):
        messages = [{"role": "user", "content": "Say only: OK"}]
        whole = self.chat(messages=messages, max_tokens=40)
        self.assertEqual(whole.choices[0].finish_reason, "stop")
        self.assertNotIn("<|im_end|>", whole.choices[0].message.content)
        self.assert_as_by_orcd(whole.usage)
        self.stack.tap.forget()
        text, reason, usage = self.read(
            self.chat(
                messages=messages,
                max_tokens=40,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        self.assertEqual((text, reason), (whole.choices[0].message.content, "stop"))
        self.assert_as_by_orcd(usage)

    def test_completions_streaming_and_not(self):
        options = {"max_tokens": 12, "temperature": 0.7, "seed": 3}
        whole = self.complete(**options)
        self.assertEqual(whole.choices[0].finish_reason, "length")
        self.assert_as_by_orcd(whole.usage)
        self.stack.tap.forget()
        text, reason, usage = self.read(
            self.complete(stream=True, stream_options={"include_usage": True}, **options)
        )
        self.assertEqual((text, reason), (whole.choices[0].text, "length"))
        self.assert_as_by_orcd(usage)

    def test_a_seed_gives_the_same_again_and_another_something_else(self):
        texts = [
            self.chat(max_tokens=16, temperature=1, seed=seed).choices[0].message.content
            for seed in (11, 11, 12)
        ]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])

    def test_stop_strings(self):
        free = self.complete(max_tokens=12).choices[0].text
        self.assertIn("return", free)
        for stop in ("return", ["nowhere", "return"]):
            self.stack.tap.forget()
            whole = self.complete(max_tokens=12, stop=stop)
            self.assertEqual(whole.choices[0].text, free[: free.index("return")])
            self.assertEqual(whole.choices[0].finish_reason, "stop")
            # The worker stopped the generation; smg did not just trim the text.
            self.assertLess(whole.usage.completion_tokens, 12)
            self.assert_as_by_orcd(whole.usage)
        self.stack.tap.forget()
        text, reason, usage = self.read(
            self.complete(
                max_tokens=12,
                stop="return",
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        self.assertEqual((text, reason), (free[: free.index("return")], "stop"))
        self.assert_as_by_orcd(usage)

    def test_logprobs(self):
        whole = self.chat(max_tokens=6, logprobs=True, top_logprobs=3)
        request, _ = self.stack.tapped()
        _, ours, _ = self.stack.same_by_orcd(request)
        self.assertEqual(request.sampling_params.logprobs, 3)
        theirs = whole.choices[0].logprobs.content
        self.assertEqual(len(theirs), len(ours))
        self.assertEqual("".join(t.token for t in theirs), whole.choices[0].message.content)
        for their, our in zip(theirs, ours):
            self.assertEqual(as_float(their.logprob), our.logprob)
            self.assertEqual(
                [as_float(top.logprob) for top in their.top_logprobs],
                [top.logprob for top in our.top],
            )
        streamed = []
        for event in self.chat(max_tokens=6, logprobs=True, top_logprobs=3, stream=True):
            for choice in event.choices:
                streamed.extend(choice.logprobs.content if choice.logprobs else [])
        self.assertEqual([t.token for t in streamed], [t.token for t in theirs])
        self.assertEqual([t.logprob for t in streamed], [t.logprob for t in theirs])

    def test_samples(self):
        whole = self.chat(max_tokens=8, n=3, temperature=1, seed=5)
        self.assertEqual([choice.index for choice in whole.choices], [0, 1, 2])
        texts = [choice.message.content for choice in whole.choices]
        self.assertEqual(len(set(texts)), 3)
        self.assert_as_by_orcd(whole.usage)
        parts = {}
        for event in self.chat(max_tokens=8, n=3, temperature=1, seed=5, stream=True):
            for choice in event.choices:
                parts[choice.index] = parts.get(choice.index, "") + (choice.delta.content or "")
        self.assertEqual([parts[i] for i in range(3)], texts)

    def test_tool_calls(self):
        options = {
            "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
            "tools": [WEATHER_TOOL],
            "max_tokens": 64,
        }
        whole = self.chat(**options).choices[0]
        self.assertEqual(whole.finish_reason, "tool_calls")
        (call,) = whole.message.tool_calls
        self.assertEqual(call.function.name, "get_weather")
        self.assertEqual(json.loads(call.function.arguments), {"city": "Paris"})
        name, arguments, reason = "", "", None
        for event in self.chat(stream=True, **options):
            for choice in event.choices:
                reason = choice.finish_reason or reason
                for part in choice.delta.tool_calls or []:
                    name += part.function.name or ""
                    arguments += part.function.arguments or ""
        self.assertEqual((name, reason), ("get_weather", "tool_calls"))
        self.assertEqual(json.loads(arguments), {"city": "Paris"})

    def text_of(self, **options):
        """The whole text of a chat, which must be complete, streamed and not."""
        whole = self.chat(max_tokens=120, **options).choices[0]
        self.assertEqual(whole.finish_reason, "stop", whole.message.content)
        text, reason, _ = self.read(self.chat(max_tokens=120, stream=True, **options))
        self.assertEqual((text, reason), (whole.message.content, "stop"))
        return text

    def test_a_response_format_holds(self):
        asked = {"messages": [{"role": "user", "content": "Who was Ada Lovelace? Be brief."}]}
        for temperature in (0, 1):
            person = json.loads(
                self.text_of(
                    response_format={
                        "type": "json_schema",
                        "json_schema": {"name": "person", "strict": True, "schema": PERSON},
                    },
                    temperature=temperature,
                    seed=3,
                    **asked,
                )
            )
            self.assertEqual(list(person), ["name", "born", "fields"])
            self.assertIsInstance(person["name"], str)
            self.assertIn(person["born"], range(1000, 2100))
            self.assertLessEqual(len(person["fields"]), 2)
            self.assertLessEqual(set(person["fields"]), {"mathematics", "poetry", "computing"})
        anything = self.text_of(
            messages=[{"role": "user", "content": "Give me {\"ok\": true} as JSON and no more."}],
            response_format={"type": "json_object"},
        )
        self.assertIsInstance(json.loads(anything), dict)

    def test_the_gateways_own_constraints_hold(self):
        self.assertRegex(
            self.text_of(extra_body={"regex": "[A-Z]{3}-[0-9]{4}"}), r"^[A-Z]{3}-[0-9]{4}$"
        )
        self.assertIn(
            self.text_of(extra_body={"ebnf": 'root ::= "yes" | "no"'}),
            ("yes", "no"),
        )

    def test_a_forced_tool_choice_holds(self):
        # Nothing in the chat makes the model call a function.
        options = {
            "messages": [{"role": "user", "content": "Say hello to Paris."}],
            "tools": [WEATHER_TOOL],
            "max_tokens": 120,
        }
        named = {"type": "function", "function": {"name": "get_weather"}}
        for choice in ("required", named):
            whole = self.chat(tool_choice=choice, **options).choices[0]
            (call,) = whole.message.tool_calls
            self.assertEqual(call.function.name, "get_weather")
            arguments = json.loads(call.function.arguments)
            self.assertEqual(list(arguments), ["city"])
            self.assertIsInstance(arguments["city"], str)
            name, text = "", ""
            for event in self.chat(tool_choice=choice, stream=True, **options):
                for part in (p for c in event.choices for p in c.delta.tool_calls or []):
                    name += part.function.name or ""
                    text += part.function.arguments or ""
            self.assertEqual((name, json.loads(text)), ("get_weather", arguments))

    def test_a_rule_that_cannot_be_served_is_the_clients_error(self):
        schema = {"name": "x", "schema": {"not": {"type": "object"}}}
        refused = {
            "json_schema": {"response_format": {"type": "json_schema", "json_schema": schema}},
            "regex": {"extra_body": {"regex": "("}},
        }
        for field, options in refused.items():
            with self.assertRaises(openai.BadRequestError) as caught:
                self.chat(max_tokens=4, **options)
            self.assertIn(f"sampling_params.{field}", str(caught.exception))

    def assert_free(self):
        self.stack.smg.wait_for(
            lambda: self.stack.status().queue.running_requests == 0, "it still runs"
        )
        blocks = self.stack.status().kv_blocks
        self.assertEqual(blocks.free, blocks.total)

    def test_a_client_that_leaves_frees_its_place(self):
        endless = {"max_tokens": 900, "extra_body": {"ignore_eos": True}}
        for events in (0, 2):
            stream = self.complete(stream=True, **endless)
            for _ in range(events):
                next(stream)
            self.assertEqual(self.stack.status().queue.running_requests, 1)
            stream.close()
            self.assert_free()
        with self.assertRaises(openai.APITimeoutError):
            self.complete(timeout=2, **endless)
        self.assert_free()


class SmallContextTest(unittest.TestCase):
    def test_max_tokens_past_the_context_is_what_fits(self):
        stack = Stack("--max-context", "40")
        self.addCleanup(stack.close)
        for stream in (False, True):
            answer = stack.openai.completions.create(
                model=MODEL,
                prompt="def add(a, b):",
                max_tokens=100_000,
                stream=stream,
                extra_body={"ignore_eos": True},
                **({"stream_options": {"include_usage": True}} if stream else {}),
            )
            if stream:
                events = list(answer)
                reason = [e.choices[0].finish_reason for e in events if e.choices][-1]
                usage = [e.usage for e in events if e.usage][-1]
            else:
                reason, usage = answer.choices[0].finish_reason, answer.usage
            self.assertEqual(reason, "length")
            self.assertEqual(usage.total_tokens, 40)


if __name__ == "__main__":
    BIN_DIR = sys.argv.pop(1)
    if not (MODEL_DIR / MODEL_FILE).is_file():
        print(f"SKIPPED: {MODEL_DIR / MODEL_FILE} is not there; fetch it with tools/fetch-model")
        sys.exit(77)
    unittest.main()
