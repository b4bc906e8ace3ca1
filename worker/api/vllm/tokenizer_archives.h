// The loaded model's tokenizer as an archive for gateways.
#ifndef ORCD_WORKER_API_VLLM_TOKENIZER_ARCHIVES_H_
#define ORCD_WORKER_API_VLLM_TOKENIZER_ARCHIVES_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/host/model_host.h"

namespace orcd {

// A zip with tokenizer.json and tokenizer_config.json.
struct TokenizerArchive {
  std::string bytes;
  // SHA-256 of `bytes`, in hex.
  std::string sha256;
};

// Owns the archive of the loaded model and a thread that makes it. The archive is made once, when
// it is first asked for; that takes up to a second. Any thread may call.
class TokenizerArchives {
 public:
  using Archive = std::shared_ptr<const TokenizerArchive>;
  using Done = std::function<void(const absl::StatusOr<Archive>&)>;
  using Maker = std::function<absl::StatusOr<TokenizerArchive>(const Engine&)>;

  // `host` must outlive this. Nobody else may use `host` yet.
  explicit TokenizerArchives(ModelHost& host);
  // Makes the archive with `make` instead of from the model's tokenizer.
  TokenizerArchives(ModelHost& host, Maker make);
  // Waits for the archive in the making, and for one more if callers wait for it.
  ~TokenizerArchives();

  TokenizerArchives(const TokenizerArchives&) = delete;
  TokenizerArchives& operator=(const TokenizerArchives&) = delete;

  // Calls `done` once, before Get returns or on thread_; `done` must not block. The model
  // cannot be unloaded until then: at most the time in which two archives are made, however many
  // callers ask. The errors are those of ModelHost::Borrow and ExportTokenizer.
  void Get(Done done);

 private:
  struct Job {
    EngineLease lease;
    Done done;
  };

  // State that is kept between calls. Outlives this object if the host is still calling.
  struct Kept {
    std::mutex mutex;
    // Digest of the archive's model.
    std::string digest;
    Archive archive;

    // Null if there is no archive of that model.
    Archive Find(const std::string& of_digest);
    void Set(const std::string& of_digest, Archive of_model);
  };

  void Run();
  // Returns the archive of the leased model. Called on thread_.
  absl::StatusOr<Archive> Make(const EngineLease& lease);

  ModelHost& host_;
  const Maker make_;
  const std::shared_ptr<Kept> kept_ = std::make_shared<Kept>();

  // Guards what follows.
  std::mutex mutex_;
  std::condition_variable changed_;
  // Jobs for a single model, which their leases hold.
  std::vector<Job> jobs_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_API_VLLM_TOKENIZER_ARCHIVES_H_
