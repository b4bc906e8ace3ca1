#include "tools/orcdctl/commands.h"
#include "tools/orcdctl/exit_codes.h"
#include "tools/orcdctl/human.h"

namespace orcd::ctl {
namespace {

constexpr int kBarWidth = 30;
// Percentage between two messages of a stage if each message is a line of its own.
constexpr uint64_t kPlainPercent = 25;

// True if `now` is worth a line after `shown`. Before the first line, `shown` has no stage.
bool IsMilestone(const v1::LoadProgress& shown, const v1::LoadProgress& now) {
  if (shown.stage() != now.stage()) return true;
  if (now.bytes_total() == 0) return false;
  const auto percent = [&](uint64_t done) { return 100 * done / now.bytes_total(); };
  return percent(now.bytes_done()) / kPlainPercent > percent(shown.bytes_done()) / kPlainPercent;
}

}  // namespace

int RunLoad(Session& session, const LoadOptions& options) {
  v1::LoadRequest request;
  request.set_model(options.model);
  request.set_model_id(options.model_id);
  request.set_sha256(options.sha256);
  request.set_replace(options.replace);
  for (const std::string& text : {options.model, options.model_id, options.sha256}) {
    if (const absl::Status utf8 = CheckUtf8("load", text); !utf8.ok()) {
      session.console.err << utf8.message() << '\n';
      return kExitUsage;
    }
  }

  Console& console = session.console;
  Call call(session, absl::InfiniteDuration());
  auto reader = session.worker->Load(call.context(), request);
  std::string loaded;
  {
    ProgressLine line(console.out, console.out_is_terminal);
    v1::LoadProgress shown;
    v1::LoadResponse response;
    while (reader->Read(&response)) {
      if (session.json) {
        console.out << JsonLine(response) << std::flush;
      } else if (response.has_loaded()) {
        loaded = DescribeModel(response.loaded());
      } else if (console.out_is_terminal || IsMilestone(shown, response.progress())) {
        line.Show(DescribeProgress(response.progress(), console.out_is_terminal ? kBarWidth : 0));
        shown = response.progress();
      }
    }
  }
  console.out << loaded;
  return call.Finish(reader->Finish(), "cancelled; the worker takes the load back");
}

}  // namespace orcd::ctl
