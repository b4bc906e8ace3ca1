#include <cstdint>
#include <optional>
#include <utility>

#include "tools/orcdctl/commands.h"
#include "tools/orcdctl/exit_codes.h"
#include "tools/orcdctl/human.h"

namespace orcd::ctl {

int RunDrain(Session& session, const DrainOptions& options) {
  v1::DrainRequest request;
  if (options.timeout) {
    const absl::Duration timeout = *options.timeout;
    request.mutable_timeout()->set_seconds(absl::ToInt64Seconds(timeout));
    request.mutable_timeout()->set_nanos(
        static_cast<int>(absl::ToInt64Nanoseconds(timeout % absl::Seconds(1))));
  }
  request.set_exit(options.exit);
  Console& console = session.console;
  Call call(session, absl::InfiniteDuration());
  auto reader = session.worker->Drain(call.context(), request);
  v1::DrainResponse response;
  {
    ProgressLine line(console.out, console.out_is_terminal);
    // On a pipe, a change of the remaining time alone is not worth a line.
    std::optional<std::pair<uint32_t, uint32_t>> shown;
    while (reader->Read(&response)) {
      if (session.json) {
        console.out << JsonLine(response) << std::flush;
        continue;
      }
      if (response.safe_to_delete()) continue;
      const auto counts = std::pair(response.running_requests(), response.waiting_requests());
      if (console.out_is_terminal || counts != shown) line.Show(DescribeDrain(response));
      shown = counts;
    }
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return call.Finish(status, "interrupted; the worker goes on draining");
  if (!response.safe_to_delete()) {
    console.err << "the worker ended the drain without saying that it may be deleted\n";
    return kExitFailed;
  }
  if (!session.json) console.out << DescribeDrain(response) << '\n';
  return kExitOk;
}

}  // namespace orcd::ctl
