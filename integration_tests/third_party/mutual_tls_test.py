"""The Python gRPC client talks to a real worker over mutual TLS.

mutual_tls_test.py BIN_DIR
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from worker_under_test import NANO, PATIENCE_S, WorkerUnderTest

BIN_DIR = None
EXTENSIONS = (
    "basicConstraints=critical,CA:FALSE\n"
    "extendedKeyUsage=serverAuth,clientAuth\n"
    "subjectAltName=DNS:localhost,IP:127.0.0.1\n"
)


class MutualTlsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="orcd-tls-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.openssl("req", "-x509", "-subj", "/CN=fleet", *self.new_key("ca"), "-out", "ca.pem")
        (self.folder / "ext").write_text(EXTENSIONS)
        for name in ["worker", "router", "boss"]:
            self.openssl("req", "-subj", f"/CN={name}", *self.new_key(name), "-out", f"{name}.csr")
            self.openssl(
                *["x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"],
                *["-CAcreateserial", "-days", "1", "-extfile", "ext", "-out", f"{name}.pem"],
            )
        path = self.folder.joinpath
        self.worker = WorkerUnderTest(
            BIN_DIR,
            ["--tls-cert", path("worker.pem"), "--tls-key", path("worker.key")]
            + ["--tls-client-ca", path("ca.pem"), "--inference-clients", "router"]
            + ["--control-clients", "boss"],
        )
        self.addCleanup(self.worker.close)

    def openssl(self, *words):
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)

    @staticmethod
    def new_key(name):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"] + [
            "-keyout",
            f"{name}.key",
        ]

    def connect(self, name=None):
        read = lambda file: (self.folder / file).read_bytes()
        credentials = grpc.ssl_channel_credentials(
            root_certificates=read("ca.pem"),
            private_key=read(f"{name}.key") if name else None,
            certificate_chain=read(f"{name}.pem") if name else None,
        )
        channel = grpc.secure_channel(self.worker.address, credentials)
        self.addCleanup(channel.close)
        return channel

    def call(self, channel, method, **fields):
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        descriptor = pool.FindServiceByName("orcd.v1.Worker").FindMethodByName(method)
        request = GetMessageClass(descriptor.input_type)
        rpc = channel.unary_stream(
            f"/orcd.v1.Worker/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=GetMessageClass(descriptor.output_type).FromString,
        )
        return list(rpc(request(**fields), timeout=PATIENCE_S))

    def test_each_name_may_do_its_part(self):
        boss, router = self.connect("boss"), self.connect("router")
        with self.assertRaises(grpc.RpcError) as caught:
            self.call(router, "Load", model=NANO)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.PERMISSION_DENIED)
        self.assertTrue(self.call(boss, "Load", model=NANO)[-1].HasField("loaded"))
        events = self.call(
            router,
            "Generate",
            tokens={"ids": [1, 2]},
            stop={"max_tokens": 4, "ignore_eog": True},
        )
        self.assertEqual(events[-1].finished.usage.generated_tokens, 4)
        with self.assertRaises(grpc.RpcError) as caught:
            self.call(boss, "Generate", tokens={"ids": [1]})
        self.assertEqual(caught.exception.code(), grpc.StatusCode.PERMISSION_DENIED)

    def test_without_a_certificate_there_is_no_connection(self):
        with self.assertRaises(grpc.FutureTimeoutError):
            grpc.channel_ready_future(self.connect()).result(timeout=3)


if __name__ == "__main__":
    BIN_DIR = sys.argv.pop(1)
    unittest.main()
