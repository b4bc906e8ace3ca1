"""Tests check-house on small trees that keep and that break the rules."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parent / "check-house"


class CheckHouseTest(unittest.TestCase):
    def check(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "runtime").mkdir()
            for name, text in files.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            result = subprocess.run(
                [sys.executable, str(TOOL), str(root)], capture_output=True, text=True, check=False
            )
        return result.returncode, result.stdout

    def test_what_is_allowed(self):
        allowed = {
            "runtime/engine/engine.cc": '#include "absl/status/status.h"\n',
            "runtime/constraint/llg_matcher.cc": '#include "llguidance.h"\n',
            "runtime/engine/scheduler.cc": '#include "runtime/constraint/constraint_spec.h"\n',
            "cuda/forward.cc": '#include "runtime/backend/backend.h"\n#include <cuda_runtime.h>\n',
            "cuda/kernels/norm_test.cc": '#include "runtime/cpu/cpu_backend.h"\n',
            "worker/main.cc": '#include "cuda/cuda_backend.h"\n',
            "worker/service.h": '#include "runtime/engine/engine.h"\n',
            "worker/base/logging.cc": '#include "absl/time/clock.h"\n',
            "worker/config/config.h": '#include "worker/fleet/identity.h"\n',
            "worker/security/tls.h": '#include "worker/security/guard/guard_options.h"\n',
            "worker/base/messages_test.cc": '#include "worker/host/model_host.h"\n',
            "worker/service.cc": '#include "orcd/v1/worker.grpc.pb.h"\n',
            "worker/service_test.cc": '#include "runtime/cpu/cpu_backend.h"\n',
            "runtime/engine/model_for_test.h": '#include "testing/random_model/random_model.h"\n',
            "integration_tests/load_test.cc": '#include "orcd/v1/worker.grpc.pb.h"\n',
        }
        self.assertEqual(self.check(allowed)[0], 0)

    def test_comments_do_not_begin_with_a_noun_clause(self):
        fine = (
            "// Returns what there is.\n// Of this line the rest is a continuation.\n"
            'int x;  // True if open.\nconst char* u = "http://Who";\n'
        )
        self.assertEqual(self.check({"worker/x.h": fine})[0], 0)
        self.assertEqual(self.check({"proto/vllm/x.proto": "// What they wrote.\n"})[0], 0)
        for line in ("// What one call may cost.", "int x;  // Whether it is open.", "  // Of it."):
            status, said = self.check({"worker/x.h": f"int y;\n{line}\n"})
            self.assertEqual(status, 1, line)
            self.assertIn("worker/x.h:2: a comment begins with", said)

    def test_what_is_not(self):
        forbidden = [
            ("runtime/engine/engine.cc", "grpcpp/grpcpp.h"),
            ("runtime/engine/engine.cc", "orcd/v1/worker.pb.h"),
            ("runtime/engine/engine.h", "google/protobuf/duration.pb.h"),
            ("runtime/engine/engine_test.cc", "worker/config/config.h"),
            ("runtime/engine/engine.cc", "testing/random_model/random_model.h"),
            ("runtime/engine/engine_test.cc", "tools/orcdctl/session.h"),
            ("runtime/gguf/gguf_reader.cc", "runtime/model/model.h"),
            ("runtime/constraint/constraint_cache.cc", "llguidance.h"),
            ("runtime/sampling/sampler.cc", "runtime/constraint/constraint_spec.h"),
            ("runtime/backend/backend.h", "runtime/cpu/cpu_backend.h"),
            ("worker/base/messages.cc", "worker/host/model_host.h"),
            ("worker/security/guard/connection.h", "worker/security/tls.h"),
            ("worker/host/model_host.cc", "worker/api/orcd/to_proto.h"),
            ("worker/api/orcd/load_call.cc", "worker/api/vllm/wire.h"),
            ("worker/fleet/lease.cc", "worker/config/config.h"),
            ("cuda/kernels/portable/embed.cu", "cuda/kernels/sm90/wgmma.cuh"),
            ("bench/serve_bench.cc", "worker/config/config.h"),
            ("testing/numpy.h", "cuda/device.h"),
            ("runtime/backend/backend.h", "cuda_runtime.h"),
            ("runtime/backend/backend.h", "cuda/arena.h"),
            ("runtime/cpu/kernels.inc", "runtime/engine/engine.h"),
            ("runtime/gguf/gguf_reader.cc", "runtime/model/config.h"),
            ("cuda/forward.cc", "worker/config/config.h"),
            ("cuda/forward.cc", "runtime/cpu/kernels.h"),
            ("cuda/kernels/portable/norm.cu", "absl/status/status.h"),
            ("worker/service.cc", "cuda/arena.h"),
            ("worker/service.cc", "absl/time/clock.h"),
            ("runtime/engine/engine.cc", "absl/time/clock.h"),
            ("runtime/engine/engine.cc", "runtime/null/null_backend.h"),
            ("worker/security/guard/connection.cc", "grpcpp/grpcpp.h"),
            ("worker/service.h", "runtime/cpu/cpu_backend.h"),
            ("integration_tests/load_test.cc", "worker/config/config.h"),
        ]
        for name, included in forbidden:
            with self.subTest(name=name, included=included):
                status, output = self.check({name: f'// a comment\n#  include "{included}"\n'})
                self.assertEqual(status, 1)
                self.assertIn(f"{name}:2: must not include {included}: ", output)

    def test_a_folder_that_is_not_the_repository(self):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run(
                [sys.executable, str(TOOL), folder], capture_output=True, check=False
            )
        self.assertEqual(result.returncode, 2)


if __name__ == "__main__":
    unittest.main()
