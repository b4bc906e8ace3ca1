"""The Python gRPC client drives a real worker with only the information from server reflection.

    python_client_test.py BIN_DIR

There are no generated stubs: the worker itself describes services, messages and error details.
"""

import sys
import time
import unittest

import grpc
from google.protobuf.message_factory import GetMessageClass
from reflected_worker import reflected
from worker_under_test import NANO, PATIENCE_S, WorkerUnderTest

BIN_DIR = None


class PythonClientTest(unittest.TestCase):
    def setUp(self):
        self.worker = WorkerUnderTest(BIN_DIR)
        self.addCleanup(self.worker.close)
        self.reflected, self.channel = reflected(self.worker.address)
        self.addCleanup(self.channel.close)
        self.pool = self.reflected.pool
        self.message = self.reflected.message

    def call(self, method, **fields):
        """Calls orcd.v1.Worker and returns the response, or an iterator of streamed responses."""
        return self.reflected.call("orcd.v1.Worker", method, **fields)

    def enum_name(self, full_name, number):
        return self.pool.FindEnumTypeByName(full_name).values_by_number[number].name

    def state(self):
        status = self.call("Health").status
        return self.enum_name("orcd.v1.WorkerState", status.state)

    def probe(self, service):
        """The status of a service name in grpc.health.v1, as Kubernetes requests it."""
        response = self.reflected.call("grpc.health.v1.Health", "Check", service=service)
        statuses = response.DESCRIPTOR.fields_by_name["status"].enum_type
        return statuses.values_by_number[response.status].name

    def load(self, **fields):
        return list(self.call("Load", model=NANO, **fields))

    def assert_error(self, code, method, **fields):
        """Makes a call that must fail with `code` and returns its details by message name."""
        with self.assertRaises(grpc.RpcError) as caught:
            response = self.call(method, **fields)
            if hasattr(response, "__next__"):
                list(response)
        self.assertEqual(caught.exception.code(), code, caught.exception)
        trailers = dict(caught.exception.trailing_metadata())
        status = self.message("google.rpc.Status")
        status.ParseFromString(trailers["grpc-status-details-bin"])
        self.assertEqual(status.code, code.value[0])
        self.assertEqual(status.message, caught.exception.details())
        details = {}
        for packed in status.details:
            detail = self.message(packed.TypeName())
            self.assertTrue(packed.Unpack(detail))
            details[detail.DESCRIPTOR.name] = detail
        self.assertEqual(details["ErrorInfo"].domain, "orcd")
        self.assertRegex(details["ErrorInfo"].reason, r"^[A-Z][A-Z0-9_]+$")
        return details

    def test_services(self):
        services = set(self.reflected.reflection.get_services())
        self.assertLessEqual(
            {
                "orcd.v1.Worker",
                "grpc.health.v1.Health",
                "grpc.reflection.v1.ServerReflection",
                "grpc.reflection.v1alpha.ServerReflection",
            },
            services,
        )
        methods = self.pool.FindServiceByName("orcd.v1.Worker").methods_by_name
        self.assertEqual(
            set(methods),
            {"Load", "Unload", "Generate", "GenerateMany", "Cancel", "Tokenize", "Health", "Drain"},
        )
        sampling = self.pool.FindMessageTypeByName("orcd.v1.SamplingParams")
        self.assertTrue(sampling.fields_by_name["temperature"].has_presence)

    def test_health_follows_the_model(self):
        self.assertEqual(self.state(), "WORKER_STATE_IDLE")
        self.assertFalse(self.call("Health").status.HasField("model"))
        self.assertEqual(self.probe(""), "NOT_SERVING")
        self.assertEqual(self.probe("orcd.v1.Worker"), "NOT_SERVING")
        self.assertEqual(self.probe("liveness"), "SERVING")
        self.load()
        self.assertEqual(self.probe(""), "SERVING")
        self.assertEqual(self.probe("orcd.v1.Worker"), "SERVING")
        status = self.call("Health").status
        self.assertEqual(self.state(), "WORKER_STATE_READY")
        self.assertEqual(status.model.model_id, "nano")
        self.assertEqual(status.kv_blocks.free, status.kv_blocks.total)
        self.assertGreater(status.kv_blocks.total, 0)
        self.assertEqual(self.call("Unload").model_id, "nano")
        self.assertEqual(self.state(), "WORKER_STATE_IDLE")
        self.assertEqual(self.probe(""), "NOT_SERVING")
        self.assertEqual(self.probe("liveness"), "SERVING")
        self.assertEqual(self.worker.terminate(), 0)

    def test_load_streams_progress_then_the_model(self):
        events = self.load(model_id="tiny")
        self.assertEqual([event.WhichOneof("event") for event in events[-1:]], ["loaded"])
        stages = []
        for event in events[:-1]:
            self.assertEqual(event.WhichOneof("event"), "progress")
            self.assertLessEqual(event.progress.bytes_done, event.progress.bytes_total)
            stages.append(event.progress.stage)
        self.assertEqual(stages, sorted(stages))
        model = events[-1].loaded
        self.assertEqual(model.model_id, "tiny")
        self.assertEqual(model.file, NANO)
        self.assertRegex(model.digest, r"^sha256-tree:[0-9a-f]{64}$")
        self.assertEqual(model.architecture, "qwen2")
        again = self.load(model_id="tiny")
        self.assertEqual(again[-1].loaded.digest, model.digest)

    def generate(self, **fields):
        """Checks the order of the stream's events and returns text, ids, and the last event."""
        events = list(self.call("Generate", **fields))
        kinds = [event.WhichOneof("event") for event in events]
        self.assertEqual(kinds[0], "started")
        self.assertEqual(kinds[-1], "finished")
        self.assertLessEqual(set(kinds[1:-1]), {"delta"})
        ids = [token for event in events[1:-1] for token in event.delta.token_ids]
        text = "".join(event.delta.text for event in events[1:-1])
        return events[0].started, text, ids, events[-1].finished

    def test_generate(self):
        self.load()
        prompt = {"ids": [1, 2, 3, 4, 5]}
        stop = {"max_tokens": 24, "ignore_eog": True}
        started, text, ids, finished = self.generate(tokens=prompt, stop=stop)
        self.assertEqual(started.prompt_tokens, 5)
        self.assertTrue(started.request_id)
        self.assertEqual(len(ids), 24)
        self.assertEqual(finished.usage.generated_tokens, 24)
        self.assertEqual(finished.usage.prompt_tokens, 5)
        self.assertEqual(
            self.enum_name("orcd.v1.FinishReason", finished.reason), "FINISH_REASON_MAX_TOKENS"
        )
        self.assertRegex(finished.model_digest, r"^sha256-tree:")
        again = self.generate(tokens=prompt, stop=stop, sampling={"seed": started.seed})
        self.assertEqual(again[:3][1:], (text, ids))

    def test_generate_many(self):
        self.load()
        prompt = {"ids": [1, 2, 3, 4, 5]}
        stop = {"max_tokens": 24, "ignore_eog": True}
        method = self.pool.FindServiceByName("orcd.v1.Worker").FindMethodByName("GenerateMany")
        request = GetMessageClass(method.input_type)
        response = GetMessageClass(method.output_type)
        rpc = self.channel.stream_stream(
            "/orcd.v1.Worker/GenerateMany",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        asked = [
            request(
                generate={
                    "request_id": f"r{seed}",
                    "tokens": prompt,
                    "stop": stop,
                    "sampling": {"seed": seed},
                }
            )
            for seed in range(3)
        ]
        ids, ended = {}, []
        for message in rpc(iter(asked), timeout=PATIENCE_S):
            for event in message.events:
                if event.HasField("delta"):
                    ids.setdefault(event.request_id, []).extend(event.delta.token_ids)
                if event.HasField("end"):
                    self.assertFalse(event.end.HasField("status"), event)
                    ended.append(event.request_id)
        self.assertEqual(sorted(ended), ["r0", "r1", "r2"])
        for seed in range(3):
            alone = self.generate(tokens=prompt, stop=stop, sampling={"seed": seed})
            self.assertEqual(ids[f"r{seed}"], alone[2])

    def test_generate_with_logprobs(self):
        self.load()
        stop = {"max_tokens": 4, "ignore_eog": True}
        greedy = {"temperature": 0}
        events = list(
            self.call("Generate", text={"text": "hello"}, stop=stop, sampling=greedy, logprobs=3)
        )
        found = [logprob for event in events for logprob in event.delta.logprobs]
        self.assertEqual(len(found), 4)
        for logprob in found:
            self.assertLessEqual(logprob.logprob, 0)
            self.assertEqual(len(logprob.top), 3)
            self.assertEqual(logprob.top[0].token_id, logprob.token_id)

    def test_tokenize(self):
        self.load()
        ids = list(self.call("Tokenize", text={"text": "hello, worker"}).token_ids)
        self.assertGreater(len(ids), 0)
        started, *_ = self.generate(text={"text": "hello, worker"}, stop={"max_tokens": 1})
        self.assertEqual(started.prompt_tokens, len(ids))

    def start_endless(self, request_id):
        """A stream that has started and will not end by itself soon."""
        stream = self.call(
            "Generate",
            request_id=request_id,
            tokens={"ids": [7]},
            stop={"ignore_eog": True},
        )
        self.assertEqual(next(stream).started.request_id, request_id)
        return stream

    def wait_until_idle(self):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            status = self.call("Health").status
            if status.queue.running_requests == 0:
                self.assertEqual(status.kv_blocks.free, status.kv_blocks.total)
                return
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def test_cancel(self):
        self.load()
        stream = self.start_endless("to-be-cancelled")
        self.assertTrue(self.call("Cancel", request_id="to-be-cancelled").found)
        status = self.call("Health").status
        self.assertEqual(status.kv_blocks.free, status.kv_blocks.total)
        last = None
        with self.assertRaises(grpc.RpcError) as caught:
            for event in stream:
                last = event
        self.assertEqual(caught.exception.code(), grpc.StatusCode.CANCELLED)
        self.assertEqual(last.WhichOneof("event"), "finished")
        self.assertEqual(
            self.enum_name("orcd.v1.FinishReason", last.finished.reason), "FINISH_REASON_CANCELLED"
        )
        self.assertFalse(self.call("Cancel", request_id="to-be-cancelled").found)

    def test_a_client_that_leaves(self):
        self.load()
        self.start_endless("left").cancel()
        self.wait_until_idle()
        self.generate(tokens={"ids": [1]}, stop={"max_tokens": 1})

    def test_errors_say_what_to_change(self):
        prompt = {"tokens": {"ids": [1]}}
        details = self.assert_error(grpc.StatusCode.FAILED_PRECONDITION, "Generate", **prompt)
        self.assertIn("PreconditionFailure", details)
        details = self.assert_error(grpc.StatusCode.NOT_FOUND, "Load", model="none.gguf")
        self.assertIn("ResourceInfo", details)
        self.load()
        for fields, field in [
            ({"sampling": {"top_p": 1.5}, **prompt}, "sampling.top_p"),
            ({"sampling": {"temperature": -1.0}, **prompt}, "sampling.temperature"),
            ({"stop": {"max_tokens": 0}, **prompt}, "stop.max_tokens"),
            ({"tokens": {"ids": [4_000_000]}}, "tokens.ids"),
        ]:
            with self.subTest(field=field):
                details = self.assert_error(grpc.StatusCode.INVALID_ARGUMENT, "Generate", **fields)
                named = details["BadRequest"].field_violations[0].field
                self.assertTrue(named.startswith(field), named)
        self.generate(stop={"max_tokens": 1}, **prompt)

    def test_drain(self):
        self.load()
        events = list(self.call("Drain"))
        self.assertTrue(events[-1].safe_to_delete)
        self.assertEqual(self.state(), "WORKER_STATE_DRAINED")
        self.assert_error(grpc.StatusCode.UNAVAILABLE, "Generate", tokens={"ids": [1]})
        self.assertTrue(self.worker.is_running())
        self.assertEqual(self.worker.terminate(), 0)


if __name__ == "__main__":
    BIN_DIR = sys.argv.pop(1)
    unittest.main()
