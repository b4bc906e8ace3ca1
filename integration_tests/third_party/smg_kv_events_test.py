"""The real smg follows a worker's prefix cache.

    smg_kv_events_test.py BIN_DIR

Only smg's log shows how smg interprets the events. The log's wording is that of the pinned version.
"""

import re
import sys
import unittest

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from smg_under_test import SmgUnderTest
from worker_under_test import NANO, PATIENCE_S, WorkerUnderTest

BIN_DIR = None
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class SmgKvEventsTest(unittest.TestCase):
    def setUp(self):
        self.worker = WorkerUnderTest(BIN_DIR)
        self.addCleanup(self.worker.close)
        self.channel = grpc.insecure_channel(self.worker.address)
        self.addCleanup(self.channel.close)
        self.pool = DescriptorPool(ProtoReflectionDescriptorDatabase(self.channel))

    def call(self, method, **fields):
        descriptor = self.pool.FindServiceByName("orcd.v1.Worker").FindMethodByName(method)
        request = GetMessageClass(descriptor.input_type)
        response = GetMessageClass(descriptor.output_type)
        kind = (
            self.channel.unary_stream if descriptor.server_streaming else self.channel.unary_unary
        )
        rpc = kind(
            f"/orcd.v1.Worker/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return rpc(request(**fields), timeout=PATIENCE_S)

    def snapshots(self):
        """Number of blocks in each snapshot that smg applied, in order."""
        log = COLOURS.sub("", self.smg.log())
        return [
            int(blocks)
            for blocks in re.findall(r"KV event relay snapshot applied.* blocks=(\d+)", log)
        ]

    def test_it_takes_over_the_state_and_notices_that_it_is_gone(self):
        list(self.call("Load", model=NANO))
        prompt = {"ids": list(range(1, 60))}
        list(self.call("Generate", tokens=prompt, stop={"max_tokens": 8, "ignore_eog": True}))
        cached = self.call("Health").status.kv_blocks.cached
        self.assertGreater(cached, 2)
        self.smg = SmgUnderTest(["--worker-urls", f"grpc://{self.worker.address}"])
        self.addCleanup(self.smg.close)
        self.smg.wait_for_workers([self.worker.address])
        self.smg.wait_for(lambda: self.snapshots() == [cached], "smg did not take over the state")
        self.assertRegex(COLOURS.sub("", self.smg.log()), r"Learned block_size.* block_size=16")

        self.call("Unload")
        self.smg.wait_for(
            lambda: "clearing worker state" in self.smg.log(), "smg did not clear the state"
        )
        list(self.call("Load", model=NANO))
        self.smg.wait_for(lambda: self.snapshots() == [cached, 0], "smg did not come back")
        self.assertNotIn("Sequence gap", self.smg.log())


if __name__ == "__main__":
    BIN_DIR = sys.argv.pop(1)
    unittest.main()
