#include "worker/api/vllm/tokenizer_archives.h"

#include <algorithm>
#include <span>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/model/sha256.h"
#include "runtime/text/hf_export.h"
#include "worker/api/vllm/zip_archive.h"

namespace orcd {
namespace {

absl::StatusOr<TokenizerArchive> MakeArchive(const Engine& engine) {
  // A file whose time alone changed is still the model's, and must not prevent the export. All
  // cores read it, because the engine's thread may have to wait for the same check.
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  ORCD_RETURN_IF_ERROR(engine.model().CheckIntact(threads));
  ORCD_ASSIGN_OR_RETURN(const TokenizerFiles files,
                        ExportTokenizer(engine.model().gguf(), engine.max_context()));
  TokenizerArchive archive;
  ORCD_ASSIGN_OR_RETURN(archive.bytes,
                        MakeZip({{"tokenizer.json", files.tokenizer},
                                 {"tokenizer_config.json", files.tokenizer_config}}));
  Sha256 sha256;
  sha256.Update(std::as_bytes(std::span(archive.bytes)));
  archive.sha256 = ToHex(sha256.Finish());
  return archive;
}

}  // namespace

TokenizerArchives::TokenizerArchives(ModelHost& host) : TokenizerArchives(host, MakeArchive) {}

TokenizerArchives::TokenizerArchives(ModelHost& host, Maker make)
    : host_(host), make_(std::move(make)) {
  host.Subscribe([&host, weak = std::weak_ptr<Kept>(kept_)] {
    const std::shared_ptr<Kept> kept = weak.lock();
    if (kept == nullptr) return;
    // Drops the archive of a model that is gone.
    const std::string digest = host.Status().model().digest();
    if (kept->Find(digest) == nullptr) kept->Set("", nullptr);
  });
  thread_ = std::thread([this] { Run(); });
}

TokenizerArchives::~TokenizerArchives() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void TokenizerArchives::Get(Done done) {
  absl::StatusOr<EngineLease> lease = host_.Borrow("");
  if (!lease.ok()) return done(lease.status());
  if (Archive archive = kept_->Find(lease->engine().model().digest())) return done(archive);
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back({*std::move(lease), std::move(done)});
  }
  changed_.notify_all();
}

TokenizerArchives::Archive TokenizerArchives::Kept::Find(const std::string& of_digest) {
  std::lock_guard lock(mutex);
  return digest == of_digest ? archive : nullptr;
}

void TokenizerArchives::Kept::Set(const std::string& of_digest, Archive of_model) {
  // The old archive is destroyed after the mutex is released.
  std::lock_guard lock(mutex);
  digest = of_digest;
  archive.swap(of_model);
}

void TokenizerArchives::Run() {
  while (true) {
    // All waiting callers get the same answer, even an error: a separate archive for each would
    // hold the model for as long as callers keep asking.
    std::vector<Job> jobs;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      jobs.swap(jobs_);
    }
    const absl::StatusOr<Archive> archive = Make(jobs.front().lease);
    for (const Job& job : jobs) job.done(archive);
  }
}

absl::StatusOr<TokenizerArchives::Archive> TokenizerArchives::Make(const EngineLease& lease) {
  const std::string& digest = lease.engine().model().digest();
  // An earlier job may have served callers that asked at the same time.
  if (Archive archive = kept_->Find(digest)) return archive;
  ORCD_ASSIGN_OR_RETURN(TokenizerArchive made, make_(lease.engine()));
  auto archive = std::make_shared<const TokenizerArchive>(std::move(made));
  kept_->Set(digest, archive);
  return archive;
}

}  // namespace orcd
