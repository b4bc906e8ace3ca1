"""An orchestrator in Python, written from proto/orcd/v1 alone, keeps two real workers.

orchestrator_test.py BIN_DIR ROOT
"""

import concurrent.futures
import importlib
import itertools
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import grpc
from google.protobuf.duration_pb2 import Duration
from worker_under_test import NANO, PATIENCE_S, WorkerUnderTest

BIN_DIR = None
ROOT = None


def generate_stubs(folder):
    """Generates Python code for the API from the .proto files and imports it."""
    protos = ["orcd/v1/worker.proto", "orcd/v1/orchestrator.proto", "google/rpc/status.proto"]
    protos.append("google/rpc/error_details.proto")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}"]
    command += [f"--python_out={folder}", f"--grpc_python_out={folder}", *protos]
    subprocess.run(command, check=True)
    sys.path.insert(0, str(folder))


class Orchestrator:
    """Grants leases of two seconds; the newest instance holds a worker_id."""

    def __init__(self, pb, error_details, status):
        self.pb, self.error_details, self.status_pb = pb, error_details, status
        self.lock = threading.Lock()
        self.leases, self.holders, self.superseded = {}, {}, set()
        self.statuses, self.outcomes, self.sequences = {}, {}, {}
        self.directives, self.gone = {}, []
        self.ids = itertools.count()

    def abort_superseded(self, worker_id, context):
        info = self.error_details.ErrorInfo(domain="orcd", reason="SUPERSEDED")
        info.metadata["instance_id"] = self.holders[worker_id]
        status = self.status_pb.Status(code=grpc.StatusCode.ABORTED.value[0])
        status.details.add().Pack(info)
        context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])
        context.abort(grpc.StatusCode.ABORTED, "another instance has this worker_id")

    def take(self, request):
        self.statuses[request.status.worker_id] = request.status
        self.take_outcomes(request)

    def take_outcomes(self, request):
        for outcome in request.outcomes:
            self.outcomes[outcome.id] = outcome

    def Register(self, request, context):
        with self.lock:
            worker, instance = request.status.worker_id, request.status.instance_id
            if instance in self.superseded:
                self.abort_superseded(worker, context)
            if self.holders.get(worker, instance) != instance:
                self.superseded.add(self.holders[worker])
            self.holders[worker] = instance
            self.take(request)
            lease = f"lease-{next(self.ids)}"
            self.leases[lease] = (worker, instance)
            return self.pb.RegisterResponse(
                lease_id=lease,
                lease_ttl=Duration(seconds=2),
                directives=self.directives.get(worker, []),
            )

    def Heartbeat(self, request, context):
        with self.lock:
            if request.lease_id not in self.leases:
                context.abort(grpc.StatusCode.NOT_FOUND, "no such lease")
            worker, instance = self.leases[request.lease_id]
            if instance in self.superseded:
                self.abort_superseded(worker, context)
            self.sequences.setdefault(request.lease_id, []).append(request.sequence)
            self.take(request)
            return self.pb.HeartbeatResponse(
                lease_ttl=Duration(seconds=2), directives=self.directives.get(worker, [])
            )

    def Deregister(self, request, context):
        with self.lock:
            self.leases.pop(request.lease_id, None)
            self.gone.append(request.instance_id)
            self.take_outcomes(request)
            return self.pb.DeregisterResponse()


class OrchestratorTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="orcd-stubs-")
        cls.addClassCleanup(folder.cleanup)
        generate_stubs(pathlib.Path(folder.name))
        cls.pb = importlib.import_module("orcd.v1.orchestrator_pb2")
        cls.pb_grpc = importlib.import_module("orcd.v1.orchestrator_pb2_grpc")
        cls.worker_pb = importlib.import_module("orcd.v1.worker_pb2")
        cls.error_details = importlib.import_module("google.rpc.error_details_pb2")
        cls.status_pb = importlib.import_module("google.rpc.status_pb2")

    def setUp(self):
        self.orchestrator = Orchestrator(self.pb, self.error_details, self.status_pb)
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        self.pb_grpc.add_OrchestratorServicer_to_server(self.orchestrator, server)
        self.port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        self.addCleanup(server.stop, None)

    def start(self, worker_id):
        address = f"127.0.0.1:{self.port}"
        worker = WorkerUnderTest(BIN_DIR, ["--orchestrator", address, "--worker-id", worker_id])
        self.addCleanup(worker.close)
        return worker

    def wait_for(self, condition):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with self.orchestrator.lock:
                if condition():
                    return
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def direct(self, worker_id, **action):
        directive = self.pb.Directive(id=f"d{next(self.orchestrator.ids)}", **action)
        with self.orchestrator.lock:
            self.orchestrator.directives.setdefault(worker_id, []).append(directive)
        return directive.id

    def wait_for_outcome(self, directive, state):
        wanted = self.pb.DirectiveOutcome.State.Value(state)
        outcomes = self.orchestrator.outcomes
        self.wait_for(lambda: directive in outcomes and outcomes[directive].state == wanted)
        return outcomes[directive]

    def test_keeps_two_workers(self):
        workers = [self.start(name) for name in ["a", "b"]]
        statuses = self.orchestrator.statuses
        self.wait_for(lambda: set(statuses) == {"a", "b"})
        for name in ["a", "b"]:
            self.wait_for_outcome(self.direct(name, load={"model": NANO}), "STATE_SUCCEEDED")
        ready = self.worker_pb.WORKER_STATE_READY
        self.wait_for(lambda: all(statuses[name].state == ready for name in ["a", "b"]))
        self.assertNotEqual(statuses["a"].instance_id, statuses["b"].instance_id)
        self.assertEqual(statuses["a"].model.digest, statuses["b"].model.digest)
        failed = self.wait_for_outcome(self.direct("a", load={"model": "none"}), "STATE_FAILED")
        self.assertEqual(failed.error.code, grpc.StatusCode.NOT_FOUND.value[0])

        with self.orchestrator.lock:
            self.orchestrator.leases.clear()
        self.wait_for(lambda: len(self.orchestrator.leases) == 2)
        self.wait_for_outcome(self.direct("b", drain={"exit": True}), "STATE_SUCCEEDED")
        self.assertEqual(workers[1].wait(), 0)
        self.assertEqual(self.orchestrator.gone, [statuses["b"].instance_id])
        for sequence in self.orchestrator.sequences.values():
            self.assertEqual(sequence, list(range(1, len(sequence) + 1)))

    def test_fences_the_older_of_two(self):
        older = self.start("same")
        statuses = self.orchestrator.statuses
        self.wait_for(lambda: "same" in statuses)
        first = statuses["same"].instance_id
        self.start("same")
        self.wait_for(lambda: statuses["same"].instance_id != first)
        deadline = time.monotonic() + PATIENCE_S
        while "WORKER_STATE_DRAINED" not in older.log():
            self.assertLess(time.monotonic(), deadline, older.log())
            time.sleep(0.05)
        self.assertTrue(older.is_running())
        self.assertEqual(older.terminate(), 0)
        self.assertEqual(self.orchestrator.gone, [])


if __name__ == "__main__":
    BIN_DIR, ROOT = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
    unittest.main()
