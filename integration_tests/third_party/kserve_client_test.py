"""KServe's own client, `InferenceGRPCClient`, drives a real worker.

    kserve_client_test.py BIN_DIR

The package's `__init__` imports a model server, and with it Kubernetes, Pillow and a hundred other
packages that the client does not use. This test does not install them, and imports the client
without running `__init__`.
"""

import importlib.util
import json
import sys
import types
import unittest

import grpc
import numpy
from reflected_worker import reflected
from worker_under_test import PATIENCE_S, WorkerUnderTest

package = types.ModuleType("kserve")
package.__path__ = list(importlib.util.find_spec("kserve").submodule_search_locations)
sys.modules["kserve"] = package

from kserve.inference_client import InferenceGRPCClient  # noqa: E402
from kserve.protocol.infer_type import InferInput, InferRequest, RequestedOutput  # noqa: E402

BIN_DIR = None
MODEL = "nano"
PROMPT = "Once upon a time"


def tensor(name, datatype, value, raw):
    result = InferInput(name=name, shape=[1], datatype=datatype)
    kind = bool if datatype == "BOOL" else numpy.object_
    result.set_data_from_numpy(numpy.array([value], dtype=kind), binary_data=raw)
    return result


def request(raw, model=MODEL, outputs=("text_output", "token_ids"), **sampling):
    return InferRequest(
        model_name=model,
        request_id="mine",
        infer_inputs=[
            tensor("text_input", "BYTES", PROMPT.encode(), raw),
            tensor("sampling_parameters", "BYTES", json.dumps(sampling).encode(), raw),
            tensor("exclude_input_in_output", "BOOL", True, raw),
        ],
        request_outputs=[RequestedOutput(name) for name in outputs],
    )


class KserveClientTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.worker = WorkerUnderTest(BIN_DIR)
        self.addCleanup(self.worker.close)
        self.ours, channel = reflected(self.worker.address)
        self.addCleanup(channel.close)
        self.client = InferenceGRPCClient(self.worker.address, timeout=PATIENCE_S)
        self.addAsyncCleanup(self.client.close)

    def load(self):
        # KServe's client has no call for this: KServe's agent loads models, with the name in field
        # 1.
        self.ours.call(
            "inference.GRPCInferenceService", "RepositoryModelLoad", repository_name=MODEL
        )

    async def test_health(self):
        self.assertTrue(await self.client.is_server_live())
        self.assertFalse(await self.client.is_server_ready())
        self.assertFalse(await self.client.is_model_ready(MODEL))
        self.load()
        self.assertTrue(await self.client.is_server_ready())
        self.assertTrue(await self.client.is_model_ready(MODEL))
        with self.assertRaises(grpc.RpcError) as caught:
            await self.client.is_model_ready("gpt-5")
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)

    async def test_typed_and_raw_give_the_tokens_of_orcd_v1(self):
        self.load()
        for seed in range(3):
            text, ids = self.ours.generate(
                text={"text": PROMPT}, sampling={"seed": seed}, stop={"max_tokens": 20}
            )
            for raw in (False, True):
                with self.subTest(seed=seed, raw=raw):
                    response = await self.client.infer(request(raw, seed=seed, max_tokens=20))
                    self.assertEqual(response.id, "mine")
                    self.assertEqual(response.model_name, MODEL)
                    said = response.get_output_by_name("text_output").as_numpy()[0]
                    said = said if isinstance(said, str) else said.decode()
                    self.assertEqual(said, text)
                    given = response.get_output_by_name("token_ids").as_numpy()
                    self.assertEqual(given.tolist(), ids)

    async def test_errors(self):
        self.load()
        for asked, code in [
            (request(False, temperature=-1), grpc.StatusCode.INVALID_ARGUMENT),
            (request(True, unheard_of=1), grpc.StatusCode.INVALID_ARGUMENT),
            (request(True, outputs=["logits"]), grpc.StatusCode.INVALID_ARGUMENT),
            (request(False, model="gpt-5"), grpc.StatusCode.NOT_FOUND),
        ]:
            with self.assertRaises(grpc.RpcError) as caught:
                await self.client.infer(asked)
            self.assertEqual(caught.exception.code(), code)


if __name__ == "__main__":
    BIN_DIR = sys.argv.pop(1)
    unittest.main()
