#include "worker/api/vllm/tokenizer_call.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "runtime/base/error.h"
#include "worker/api/vllm/wire.h"
#include "worker/stream/report_stream.h"

namespace orcd {
namespace {

constexpr size_t kChunkBytes = 64 << 10;
// Interval at which a client that does not read is checked, and the longest time it may go without
// reading.
constexpr absl::Duration kInterval = absl::Seconds(1);
constexpr absl::Duration kPatience = absl::Seconds(60);

// Makes the messages of one call. The archive may be set on any thread; only the stream calls the
// rest.
class TokenizerReport {
 public:
  // Counts as one of `calls` until it is destroyed.
  explicit TokenizerReport(std::shared_ptr<std::atomic<int>> calls) : calls_(std::move(calls)) {}
  ~TokenizerReport() { --*calls_; }
  TokenizerReport(const TokenizerReport&) = delete;
  TokenizerReport& operator=(const TokenizerReport&) = delete;

  void Set(const absl::StatusOr<TokenizerArchives::Archive>& archive) {
    std::lock_guard lock(mutex_);
    archive_ = archive;
  }
  void Cancel() {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
  }

  ReportStream::Report Poll() {
    std::lock_guard lock(mutex_);
    ReportStream::Report report;
    if (cancelled_) {
      report.end = MakeError(absl::StatusCode::kCancelled, "the call was cancelled",
                             {.reason = "CANCELLED"});
      return report;
    }
    if (!archive_) return report;
    if (!archive_->ok()) {
      report.end = archive_->status();
      return report;
    }
    const TokenizerArchive& archive = ***archive_;
    auto chunk = std::make_unique<vllm_wire::GetTokenizerChunk>();
    const size_t size = std::min(kChunkBytes, archive.bytes.size() - sent_);
    chunk->set_data(archive.bytes.data() + sent_, size);
    sent_ += size;
    report.more = sent_ < archive.bytes.size();
    if (!report.more) {
      chunk->set_sha256(archive.sha256);
      report.end = absl::OkStatus();
    }
    report.message = std::move(chunk);
    return report;
  }

 private:
  const std::shared_ptr<std::atomic<int>> calls_;

  // Guards what follows.
  std::mutex mutex_;
  std::optional<absl::StatusOr<TokenizerArchives::Archive>> archive_;
  size_t sent_ = 0;
  bool cancelled_ = false;
};

}  // namespace

absl::StatusOr<grpc::ServerWriteReactor<grpc::ByteBuffer>*> TokenizerCalls::Start(
    grpc::CallbackServerContext* context) {
  if (++*calls_ > max_calls_) {
    --*calls_;
    return MakeError(absl::StatusCode::kResourceExhausted,
                     absl::StrCat("as many fetch the tokenizer as may, ", max_calls_,
                                  "; try again when one of them has it"),
                     {.reason = "TOO_MANY_CALLS",
                      .subject = "tokenizer:calls",
                      .retry_after = absl::Seconds(1)});
  }
  auto report = std::make_shared<TokenizerReport>(calls_);
  auto stream = std::make_shared<ReportStream>(
      context, [report] { return report->Poll(); }, kInterval, [report] { report->Cancel(); },
      kPatience);
  auto* const reactor = stream->Serve();
  archives_.Get([report, stream](const absl::StatusOr<TokenizerArchives::Archive>& archive) {
    report->Set(archive);
    stream->Wake();
  });
  return reactor;
}

}  // namespace orcd
