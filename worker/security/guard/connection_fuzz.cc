// Feeds arbitrary bytes from a client and from a server. The filter must end the connection or
// relay whole frames that the client sent, must charge no more than its limit, and must release all
// charges.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "worker/security/guard/connection_filter.h"
#include "worker/security/guard/frames_for_test.h"

namespace orcd::guard {
namespace {

void Run(std::span<const uint8_t> input) {
  FilterOptions options;
  options.max_connection_bytes = 1 << 20;
  options.max_streams = 8;
  options.admit = [](const CallHeaders& call, const std::vector<std::string>&) {
    return call.path.size() > 20 ? absl::UnauthenticatedError("a long path") : absl::OkStatus();
  };
  TransportBudget total(1 << 20);
  {
    ServerProgress progress;
    ConnectionFilter filter(options, total, &progress);
    filter.SetPeerNames({"name"});
    if (!filter.ChargeConnection()) abort();
    ConnectionFilter::Output out;
    absl::Time now = absl::UnixEpoch();
    const auto client = [&](std::string_view bytes) {
      return filter.FromClient({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, now,
                               out);
    };
    std::string sent = std::string(kPreface) + MakeFrame(frame_type::kSettings, 0, 0);
    client(sent);
    // A byte says which side sends, and how many of the following bytes.
    while (!input.empty() && !filter.failed()) {
      const bool from_client = (input[0] & 1) == 0;
      const size_t size = std::min<size_t>(input[0] >> 1, input.size() - 1);
      const std::span<const uint8_t> part = input.subspan(1, size);
      input = input.subspan(1 + size);
      now += absl::Milliseconds(100);
      if (from_client) {
        const size_t taken = filter.FromClient(part, now, out);
        if (taken > part.size()) abort();
        sent.append(reinterpret_cast<const char*>(part.data()), taken);
        if (taken < part.size() && filter.accepting() && out.to_client.size() <= 65536) abort();
      } else {
        filter.FromServer(part, now, out);
        progress.sent = ++progress.answered;
      }
      if (total.used() > total.limit() || filter.budget().used() < 0) abort();
    }
    if (!FaultInRelayed(sent, out.to_server).empty()) abort();
  }
  if (total.used() != 0) abort();
}

}  // namespace
}  // namespace orcd::guard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  orcd::guard::Run({data, size});
  return 0;
}
