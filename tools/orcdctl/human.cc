#include "tools/orcdctl/human.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/orcdctl/console.h"

namespace orcd::ctl {
namespace {

constexpr char kDot[] = " · ";

// A table of labels and values in two columns.
class Table {
 public:
  void Add(std::string label, std::string_view value) {
    rows_.emplace_back(std::move(label), AsOneLine(value));
  }
  std::string Render() const {
    size_t width = 0;
    for (const auto& row : rows_) width = std::max(width, row.first.size());
    std::string text;
    for (const auto& [label, value] : rows_) {
      absl::StrAppend(&text, label, std::string(width + 2 - label.size(), ' '), value, "\n");
    }
    return text;
  }

 private:
  std::vector<std::pair<std::string, std::string>> rows_;
};

// The name of an enum value without the prefix that all values of the enum share.
template <typename Enum>
std::string NameWithout(std::string_view prefix, const std::string& name, Enum value) {
  if (name.empty()) return absl::StrCat(static_cast<int>(value));
  return name.substr(prefix.size());
}

double Ratio(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : std::min(1.0, static_cast<double>(part) / static_cast<double>(whole));
}

std::string Rate(double tokens, absl::Duration time) {
  const double seconds = absl::ToDoubleSeconds(time);
  return seconds <= 0 ? "" : absl::StrFormat(", %.1f tok/s", tokens / seconds);
}

std::string Counted(uint64_t n, std::string_view singular) {
  return absl::StrCat(n, " ", std::string(singular), n == 1 ? "" : "s");
}

std::string Guesses(uint64_t all, uint64_t right) {
  return absl::StrFormat("%u of %u right", right, all);
}

std::string DescribeSampling(const v1::SamplingDefaults& defaults) {
  std::vector<std::string> parts;
  const auto add = [&parts](bool is_set, const char* name, auto value) {
    if (is_set) parts.push_back(absl::StrCat(name, " ", value));
  };
  add(defaults.has_temperature(), "temperature", defaults.temperature());
  add(defaults.has_top_k(), "top-k", defaults.top_k());
  add(defaults.has_top_p(), "top-p", defaults.top_p());
  add(defaults.has_min_p(), "min-p", defaults.min_p());
  add(defaults.has_repetition_penalty(), "repetition penalty", defaults.repetition_penalty());
  return absl::StrJoin(parts, kDot);
}

std::string DescribeSpeculation(const v1::Speculation& speculation) {
  std::string text = speculation.drafter();
  for (const std::string& part : {speculation.draft_model(), speculation.warning()}) {
    if (!part.empty()) absl::StrAppend(&text, kDot, part);
  }
  return text;
}

std::string DescribeGpu(const v1::Gpu& gpu) {
  std::string text = gpu.uuid();
  if (!gpu.compute_capability().empty()) {
    absl::StrAppend(&text, kDot, "compute capability ", gpu.compute_capability());
  }
  absl::StrAppend(&text, kDot, "driver ", gpu.driver_version());
  if (!gpu.driver_cuda_version().empty()) {
    absl::StrAppend(&text, " (CUDA ", gpu.driver_cuda_version(), "; needs ", gpu.required_driver(),
                    " or CUDA ", gpu.required_cuda_version(), ")");
  }
  absl::StrAppend(&text, kDot, HumanBytes(gpu.memory_total_bytes()));
  return text;
}

// Empty if the driver gives no number.
std::string DescribeErrors(const v1::GpuErrors& errors) {
  std::vector<std::string> parts;
  if (errors.has_ecc_uncorrected()) {
    parts.push_back(absl::StrCat("ECC ", errors.ecc_uncorrected(), " uncorrected, ",
                                 errors.ecc_corrected(), " corrected"));
  }
  if (errors.row_remap_failed()) {
    parts.push_back("no spare rows left");
  } else if (errors.row_remap_pending()) {
    parts.push_back("rows to replace at the next reset");
  }
  if (errors.has_xids()) {
    parts.push_back(Counted(errors.xids(), "Xid"));
    if (errors.has_last_xid()) absl::StrAppend(&parts.back(), ", last ", errors.last_xid());
  }
  return absl::StrJoin(parts, kDot);
}

void AddModel(Table& table, const v1::ModelDescription& model) {
  std::string name = model.model_id();
  if (!model.name().empty()) absl::StrAppend(&name, " (", model.name(), ")");
  table.Add("model", name);
  table.Add("file", absl::StrCat(model.file(), kDot, HumanBytes(model.size_bytes())));
  table.Add("digest", model.digest());
  table.Add("weights", absl::StrCat(model.architecture(), kDot, HumanCount(model.parameters()),
                                    " parameters", kDot, model.quantization()));
  const std::string experts = model.experts() == 0
                                  ? ""
                                  : absl::StrFormat("%s%u experts, %u a token", kDot,
                                                    model.experts(), model.experts_used());
  table.Add(
      "shape",
      absl::StrFormat("%u layers%shidden %u%s%u heads, %u for KV, of %u%sffn %u%s%svocab %u",
                      model.layers(), kDot, model.hidden(), kDot, model.heads(), model.kv_heads(),
                      model.head_dim(), kDot, model.ffn(), experts, kDot, model.vocab()));
  const std::string window =
      model.window() == 0
          ? ""
          : absl::StrCat(" (", model.window_layers(), " layers: the last ", model.window(), ")");
  table.Add("context", absl::StrCat(model.context_length(), " tokens", window, kDot, "chat ",
                                    model.chat_supported() ? "supported" : "not supported",
                                    model.chat_tools_supported() ? ", with tools" : ""));
  if (model.has_sampling_defaults()) {
    table.Add("sampling", DescribeSampling(model.sampling_defaults()));
  }
  if (model.has_speculation()) table.Add("drafter", DescribeSpeculation(model.speculation()));
}

}  // namespace

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

std::string HumanBytes(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB", "PiB"}) {
    // A value that would print as 1024.0 becomes 1.0 of the next unit.
    if (value < 1023.95) break;
    value /= 1024;
    unit = next;
  }
  return absl::StrFormat("%.1f %s", value, unit);
}

std::string HumanCount(uint64_t count) {
  const double value = static_cast<double>(count);
  if (value >= 1e9) return absl::StrFormat("%.2f B", value / 1e9);
  if (value >= 1e6) return absl::StrFormat("%.0f M", value / 1e6);
  if (value >= 1e3) return absl::StrFormat("%.0f K", value / 1e3);
  return absl::StrCat(count);
}

std::string HumanDuration(absl::Duration duration) {
  duration = std::max(duration, absl::ZeroDuration());
  if (duration < absl::Milliseconds(999.5)) {
    return absl::StrFormat("%.0f ms", absl::ToDoubleMilliseconds(duration));
  }
  if (duration < absl::Seconds(59.95)) {
    return absl::StrFormat("%.1f s", absl::ToDoubleSeconds(duration));
  }
  const int64_t seconds = absl::ToInt64Seconds(duration + absl::Milliseconds(500));
  const int64_t minutes = seconds / 60;
  const int64_t hours = minutes / 60;
  if (hours == 0) return absl::StrFormat("%d min %d s", minutes, seconds % 60);
  if (hours < 48) return absl::StrFormat("%d h %d min", hours, minutes % 60);
  return absl::StrFormat("%d d %d h", hours / 24, hours % 24);
}

std::string StateName(v1::WorkerState state) {
  return NameWithout("WORKER_STATE_", v1::WorkerState_Name(state), state);
}

std::string StageName(v1::LoadStage stage) {
  switch (stage) {
    case v1::LOAD_STAGE_OPEN:
      return "open";
    case v1::LOAD_STAGE_VERIFY:
      return "verify";
    case v1::LOAD_STAGE_PLACE:
      return "place";
    case v1::LOAD_STAGE_SELF_CHECK:
      return "self-check";
    default:
      return "load";
  }
}

std::string DescribeStatus(const v1::WorkerStatus& status) {
  Table table;
  table.Add("state", StateName(status.state()));
  if (!status.reason().empty()) table.Add("reason", status.reason());
  if (status.has_load()) table.Add("load", DescribeProgress(status.load(), 0));
  if (status.has_model()) AddModel(table, status.model());
  if (status.has_device()) {
    std::string device = absl::StrCat(status.device().backend(), kDot, status.device().name());
    if (status.device().threads() > 0) {
      absl::StrAppend(&device, kDot, Counted(status.device().threads(), "thread"));
    }
    if (!status.device().kernels().empty()) {
      absl::StrAppend(&device, kDot, "kernels ", status.device().kernels());
    }
    table.Add("device", device);
    if (!status.device().numeric_identity().empty()) {
      table.Add("numerics", status.device().numeric_identity());
    }
    if (status.device().has_gpu()) {
      const v1::Gpu& gpu = status.device().gpu();
      table.Add("GPU", DescribeGpu(gpu));
      const std::string errors = DescribeErrors(gpu.errors());
      if (!errors.empty()) table.Add("GPU errors", errors);
    }
  }
  if (status.has_memory()) {
    const auto& memory = status.memory();
    const auto if_any = [](const char* name, uint64_t bytes) {
      return bytes == 0 ? std::string() : absl::StrCat(kDot, name, HumanBytes(bytes));
    };
    table.Add("memory",
              absl::StrCat("weights ", HumanBytes(memory.weights_bytes()), kDot, "KV ",
                           HumanBytes(memory.kv_bytes()), if_any("states ", memory.state_bytes()),
                           kDot, "workspace ", HumanBytes(memory.workspace_bytes()),
                           if_any("draft model ", memory.draft_bytes()), kDot, "resident ",
                           HumanBytes(memory.process_resident_bytes())));
  }
  if (status.has_queue()) {
    const auto& queue = status.queue();
    table.Add("queue",
              absl::StrFormat("%u of %u running%s%u of %u waiting%s%u finished%s%s generated",
                              queue.running_requests(), queue.max_running_requests(), kDot,
                              queue.waiting_requests(), queue.max_waiting_requests(), kDot,
                              queue.finished_requests(), kDot,
                              Counted(queue.generated_tokens(), "token")));
  }
  if (status.has_kv_blocks()) {
    const auto& kv = status.kv_blocks();
    std::string text =
        absl::StrFormat("%u of %u blocks free (%.0f%%)%s%u tokens a block", kv.free(), kv.total(),
                        100 * Ratio(kv.free(), kv.total()), kDot, kv.tokens_per_block());
    if (kv.window_total() > 0) {
      absl::StrAppendFormat(&text, "%swindows %u of %u blocks free", kDot, kv.window_free(),
                            kv.window_total());
    }
    table.Add("KV", text);
  }
  if (status.has_state_cells()) {
    const auto& cells = status.state_cells();
    table.Add("states", absl::StrFormat("%u of %u cells used (%s each)%s%u hits",
                                        cells.held() + cells.cached(), cells.total(),
                                        HumanBytes(cells.bytes_per_cell()), kDot, cells.hits()));
  }
  if (status.has_speculation()) {
    table.Add("guesses", Guesses(status.speculation().draft_tokens(),
                                 status.speculation().accepted_draft_tokens()));
  }
  if (status.has_rates()) {
    const v1::Rates& rates = status.rates();
    table.Add("rates", absl::StrFormat("%.1f tok/s%sprompts %.1f tok/s%s%.2f requests/s over %s",
                                       rates.generated_tokens_per_second(), kDot,
                                       rates.prompt_tokens_per_second(), kDot,
                                       rates.finished_requests_per_second(),
                                       HumanDuration(FromProto(rates.window()))));
  }
  if (status.has_last_step_age()) {
    table.Add("last step", HumanDuration(FromProto(status.last_step_age())) + " ago");
  }
  table.Add("worker", absl::StrCat(status.worker_id(), kDot, "instance ", status.instance_id(),
                                   kDot, "version ", status.version()));
  if (status.has_uptime()) table.Add("uptime", HumanDuration(FromProto(status.uptime())));
  return table.Render();
}

std::string DescribeModel(const v1::ModelDescription& model) {
  Table table;
  AddModel(table, model);
  return table.Render();
}

std::string DescribeProgress(const v1::LoadProgress& progress, int bar_width) {
  std::string line = absl::StrFormat("%-10s", StageName(progress.stage()));
  if (progress.bytes_total() > 0) {
    const double ratio = Ratio(progress.bytes_done(), progress.bytes_total());
    if (bar_width > 0) {
      const int full = static_cast<int>(ratio * bar_width);
      absl::StrAppend(&line, " [", std::string(full, '#'), std::string(bar_width - full, '.'), "]");
    }
    absl::StrAppend(&line, absl::StrFormat(" %3.0f%%", 100 * ratio));
    // The self-check counts tokens.
    if (progress.stage() != v1::LOAD_STAGE_SELF_CHECK) {
      absl::StrAppend(&line, "  ", HumanBytes(progress.bytes_done()), " of ",
                      HumanBytes(progress.bytes_total()));
    }
  }
  if (progress.has_elapsed()) {
    absl::StrAppend(&line, "  ", HumanDuration(FromProto(progress.elapsed())));
  }
  if (progress.has_eta()) {
    absl::StrAppend(&line, "  ", HumanDuration(FromProto(progress.eta())), " left");
  }
  return line;
}

std::string DescribeDrain(const v1::DrainResponse& drain) {
  if (drain.safe_to_delete()) return "drained: the worker may be deleted";
  std::string line = absl::StrCat("draining: ", drain.running_requests(), " running, ",
                                  drain.waiting_requests(), " waiting");
  if (drain.has_remaining()) {
    absl::StrAppend(&line, ", ended in ", HumanDuration(FromProto(drain.remaining())),
                    " at the latest");
  }
  return line;
}

std::string DescribeFinish(const v1::GenerateFinished& finished) {
  switch (finished.reason()) {
    case v1::FINISH_REASON_EOG:
      return "end of turn";
    case v1::FINISH_REASON_STOP_STRING:
      return absl::StrCat("stop string \"", AsOneLine(finished.stop_string()), "\"");
    case v1::FINISH_REASON_STOP_TOKEN:
      return absl::StrCat("stop id ", finished.token_id());
    case v1::FINISH_REASON_MAX_TOKENS:
      return "max tokens reached";
    case v1::FINISH_REASON_CONTEXT_LENGTH:
      return "context full";
    case v1::FINISH_REASON_CANCELLED:
      return "cancelled";
    case v1::FINISH_REASON_DRAINED:
      return "ended by a drain";
    default:
      return "ended";
  }
}

std::string DescribeStats(const v1::GenerateStarted& started,
                          const v1::GenerateFinished& finished) {
  const auto& usage = finished.usage();
  const auto& timings = finished.timings();
  const absl::Duration prefill = FromProto(timings.prefill());
  const absl::Duration decode = FromProto(timings.decode());
  const uint32_t computed =
      usage.prompt_tokens() - std::min(usage.prompt_tokens(), usage.cached_prompt_tokens());
  // The first token comes from the prefill; the decode time covers the later ones.
  const uint32_t decoded = usage.generated_tokens() > 0 ? usage.generated_tokens() - 1 : 0;
  std::vector<std::string> remarks;
  if (usage.forced_tokens() > 0) remarks.push_back(absl::StrCat(usage.forced_tokens(), " forced"));
  if (usage.draft_tokens() > 0) {
    remarks.push_back(
        absl::StrCat("guesses: ", Guesses(usage.draft_tokens(), usage.accepted_draft_tokens())));
  }
  return absl::StrCat(
      Counted(usage.generated_tokens(), "token"),
      remarks.empty() ? "" : absl::StrCat(" (", absl::StrJoin(remarks, ", "), ")"), " in ",
      HumanDuration(prefill + decode), decoded > 0 ? Rate(decoded, decode) : "", kDot, "prompt ",
      Counted(usage.prompt_tokens(), "token"),
      usage.cached_prompt_tokens() > 0
          ? absl::StrCat(" (", usage.cached_prompt_tokens(), " cached)")
          : "",
      " in ", HumanDuration(prefill), computed > 0 ? Rate(computed, prefill) : "", kDot, "queued ",
      HumanDuration(FromProto(timings.queue())), kDot, DescribeFinish(finished), kDot, "seed ",
      started.seed(), kDot, "request ", AsOneLine(started.request_id()));
}

std::string JsonLine(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return "{}\n";
  return json + "\n";
}

}  // namespace orcd::ctl
