"""Triton's own client, `tritonclient[grpc]`, drives a real worker.

    tritonclient_test.py BIN_DIR
"""

import json
import queue
import sys
import time
import unittest

import numpy
import tritonclient.grpc as triton
from reflected_worker import reflected
from tritonclient.utils import InferenceServerException
from worker_under_test import NANO, PATIENCE_S, WorkerUnderTest

BIN_DIR = None
MODEL = "nano"
PROMPT = "Once upon a time"


def text(value):
    return numpy.array([value.encode()], dtype=numpy.object_)


def inputs(prompt=PROMPT, switches=(), **sampling):
    """Tensors of the prompt, of sampling parameters if there are any, and of `switches` set to
    true."""
    tensors = [triton.InferInput("text_input", [1], "BYTES")]
    tensors[0].set_data_from_numpy(text(prompt))
    if sampling:
        tensors.append(triton.InferInput("sampling_parameters", [1], "BYTES"))
        tensors[-1].set_data_from_numpy(text(json.dumps(sampling)))
    for name in switches:
        tensors.append(triton.InferInput(name, [1], "BOOL"))
        tensors[-1].set_data_from_numpy(numpy.array([True], dtype=bool))
    return tensors


def outputs(*names):
    return [triton.InferRequestedOutput(name) for name in names]


def is_final(result):
    return result.get_response().parameters["triton_final_response"].bool_param


class TritonClientTest(unittest.TestCase):
    def setUp(self):
        self.worker = WorkerUnderTest(BIN_DIR)
        self.addCleanup(self.worker.close)
        self.ours, channel = reflected(self.worker.address)
        self.addCleanup(channel.close)
        self.client = triton.InferenceServerClient(self.worker.address)
        self.addCleanup(self.client.close)

    def load(self):
        self.client.load_model(MODEL)

    def orcd_v1(self, seed, max_tokens):
        """Text and ids that orcd.v1 gives for the prompt."""
        return self.ours.generate(
            text={"text": PROMPT}, sampling={"seed": seed}, stop={"max_tokens": max_tokens}
        )

    def test_health_and_repository(self):
        self.assertTrue(self.client.is_server_live())
        self.assertFalse(self.client.is_server_ready())
        self.assertFalse(self.client.is_model_ready(MODEL))
        index = self.client.get_model_repository_index().models
        self.assertEqual([(m.name, m.state) for m in index], [(MODEL, "UNAVAILABLE")])
        self.load()
        self.assertTrue(self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready(MODEL))
        self.assertTrue(self.client.is_model_ready(MODEL, "1"))
        self.assertEqual(self.client.get_server_metadata().name, "worker-orcd")
        metadata = self.client.get_model_metadata(MODEL)
        self.assertEqual(metadata.inputs[0].name, "text_input")
        config = self.client.get_model_config(MODEL).config
        self.assertTrue(config.model_transaction_policy.decoupled)
        self.assertEqual(config.max_batch_size, 0)
        self.assertEqual([i.name for i in config.input], [i.name for i in metadata.inputs])
        self.client.unload_model(MODEL)
        self.assertFalse(self.client.is_server_ready())
        with self.assertRaises(InferenceServerException) as caught:
            self.client.load_model("none")
        self.assertEqual(caught.exception.status(), "StatusCode.NOT_FOUND")
        self.assertIn(NANO, caught.exception.message())

    def test_one_answer(self):
        self.load()
        for seed in range(4):
            expected, ids = self.orcd_v1(seed, 20)
            result = self.client.infer(
                MODEL,
                inputs(seed=seed, max_tokens=20, switches=["exclude_input_in_output"]),
                outputs=outputs("text_output", "token_ids", "finish_reason"),
                request_id="mine",
            )
            self.assertEqual(result.get_response().id, "mine")
            self.assertEqual(result.as_numpy("text_output")[0].decode(), expected)
            self.assertEqual(result.as_numpy("token_ids").tolist(), ids)
            self.assertIn(result.as_numpy("finish_reason")[0], (b"stop", b"length"))

    def test_the_prompt_comes_first_by_default(self):
        self.load()
        expected, ids = self.orcd_v1(1, 8)
        # In the form of Triton's own example.
        switches = ["return_finish_reason", "return_num_input_tokens", "return_num_output_tokens"]
        result = self.client.infer(
            MODEL, inputs(seed="1", max_tokens="8", temperature="1.0", switches=switches)
        )
        self.assertEqual(result.as_numpy("text_output")[0].decode(), PROMPT + expected)
        self.assertGreater(result.as_numpy("num_input_tokens")[0], 0)
        self.assertGreaterEqual(result.as_numpy("num_output_tokens")[0], len(ids))

    def test_parameters_of_the_request(self):
        self.load()
        expected, _ = self.orcd_v1(3, 6)
        result = self.client.infer(
            MODEL,
            inputs(switches=["exclude_input_in_output"]),
            parameters={"seed": 3, "max_tokens": 6, "temperature": 1.0},
        )
        self.assertEqual(result.as_numpy("text_output")[0].decode(), expected)

    def start_stream(self):
        """Opens a stream and returns the queue that receives (result, error) of each message."""
        came = queue.Queue()
        self.client.start_stream(lambda result, error: came.put((result, error)))
        return came

    def test_a_stream_of_several_requests(self):
        self.load()
        came = self.start_stream()
        seeds = range(6)
        for seed in seeds:
            self.client.async_stream_infer(
                MODEL,
                inputs(seed=seed, max_tokens=30, switches=["stream"]),
                outputs=outputs("text_output", "token_ids"),
                request_id=f"r{seed}",
                enable_empty_final_response=seed % 2 == 0,
            )
        texts, ids, answers, ended = {}, {}, {}, set()
        while len(ended) < len(seeds):
            result, error = came.get(timeout=PATIENCE_S)
            self.assertIsNone(error)
            name = result.get_response().id
            answers[name] = answers.get(name, 0) + 1
            self.assertNotIn(name, ended)
            if is_final(result):
                ended.add(name)
            if result.get_response().outputs:
                texts[name] = texts.get(name, "") + result.as_numpy("text_output")[0].decode()
                ids.setdefault(name, []).extend(result.as_numpy("token_ids").tolist())
            else:
                self.assertTrue(is_final(result))
        for seed in seeds:
            expected, expected_ids = self.orcd_v1(seed, 30)
            self.assertEqual(texts[f"r{seed}"], expected)
            self.assertEqual(ids[f"r{seed}"], expected_ids)
        self.assertGreater(max(answers.values()), 2)
        self.client.stop_stream()
        self.assertTrue(came.empty())

    def test_an_error_ends_its_request_alone(self):
        self.load()
        came = self.start_stream()
        self.client.async_stream_infer(MODEL, inputs(temperature=-1))
        result, error = came.get(timeout=PATIENCE_S)
        self.assertIsNone(result)
        self.assertRegex(error.message(), "^INVALID_ARGUMENT: sampling_parameters.temperature")
        self.client.async_stream_infer("gpt-5", inputs())
        _, error = came.get(timeout=PATIENCE_S)
        self.assertIn("gpt-5", error.message())
        self.client.async_stream_infer(MODEL, inputs(max_tokens=3))
        result, error = came.get(timeout=PATIENCE_S)
        self.assertIsNone(error)
        self.assertTrue(is_final(result))
        self.client.stop_stream()

    def test_errors_of_one_answer(self):
        with self.assertRaises(InferenceServerException) as caught:
            self.client.infer(MODEL, inputs())
        self.assertEqual(caught.exception.status(), "StatusCode.FAILED_PRECONDITION")
        self.load()
        for asked, code, said in [
            ((MODEL, inputs(temprature=1)), "INVALID_ARGUMENT", "temprature"),
            ((MODEL, inputs(logprobs=1)), "INVALID_ARGUMENT", "logprobs"),
            ((MODEL, inputs(n=2)), "INVALID_ARGUMENT", "sampling_parameters.n"),
            (("gpt-5", inputs()), "NOT_FOUND", "gpt-5"),
            ((MODEL, inputs(), "7"), "NOT_FOUND", "7"),
        ]:
            with self.assertRaises(InferenceServerException) as caught:
                self.client.infer(*asked)
            self.assertEqual(caught.exception.status(), f"StatusCode.{code}")
            self.assertIn(said, caught.exception.message())

    def wait_until_idle(self):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            status = self.ours.status()
            if status.queue.running_requests == 0 and status.queue.waiting_requests == 0:
                self.assertEqual(status.kv_blocks.free, status.kv_blocks.total)
                return
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def test_stopping_the_stream_cancels_its_requests(self):
        self.load()
        came = self.start_stream()
        for _ in range(3):
            self.client.async_stream_infer(MODEL, inputs(ignore_eos=True, switches=["stream"]))
        result, error = came.get(timeout=PATIENCE_S)
        self.assertIsNone(error)
        self.assertFalse(is_final(result))
        self.client.stop_stream(cancel_requests=True)
        self.wait_until_idle()

    def test_cancelling_one_answer(self):
        self.load()
        came = queue.Queue()
        call = self.client.async_infer(
            MODEL, inputs(ignore_eos=True), lambda result, error: came.put((result, error))
        )
        deadline = time.monotonic() + PATIENCE_S
        while self.ours.status().queue.running_requests == 0:
            self.assertLess(time.monotonic(), deadline)
            self.assertTrue(came.empty())
        call.cancel()
        self.wait_until_idle()


if __name__ == "__main__":
    BIN_DIR = sys.argv.pop(1)
    unittest.main()
