// The loaded model's tokenizer as an archive that gateways fetch.
#ifndef ORCD_WORKER_VLLM_TOKENIZER_ARCHIVES_H_
#define ORCD_WORKER_VLLM_TOKENIZER_ARCHIVES_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model_host.h"

namespace orcd {

// A zip with tokenizer.json and tokenizer_config.json.
struct TokenizerArchive {
  std::string bytes;
  // Of `bytes`, in hex.
  std::string sha256;
};

// Owns the archive of the loaded model, which is made once, when it is first asked for, and a
// thread that makes it, since that takes up to a second. Any thread may call.
class TokenizerArchives {
 public:
  using Archive = std::shared_ptr<const TokenizerArchive>;
  using Done = std::function<void(const absl::StatusOr<Archive>&)>;
  using Maker = std::function<absl::StatusOr<TokenizerArchive>(const Engine&)>;

  // `host` must outlive this; it is not shared yet.
  explicit TokenizerArchives(ModelHost& host);
  // With something else than the model's tokenizer.
  TokenizerArchives(ModelHost& host, Maker make);
  // Waits for the archive in the making, and for one more where others wait.
  ~TokenizerArchives();

  TokenizerArchives(const TokenizerArchives&) = delete;
  TokenizerArchives& operator=(const TokenizerArchives&) = delete;

  // Calls `done` once, before this returns or from the thread; it must not block. The model cannot
  // be unloaded in between, which is at most the making of two archives, however many ask. The
  // errors are those of ModelHost::Borrow and ExportTokenizer.
  void Get(Done done);

 private:
  struct Job {
    EngineLease lease;
    Done done;
  };

  // What is kept between calls. Outlives this where the host is still calling.
  struct Kept {
    std::mutex mutex;
    // Of the model with this digest.
    std::string digest;
    Archive archive;

    // Null where there is none of that model.
    Archive Find(const std::string& of_digest);
    void Set(const std::string& of_digest, Archive of_model);
  };

  void Run();
  // The archive of the leased model. The thread's.
  absl::StatusOr<Archive> Make(const EngineLease& lease);

  ModelHost& host_;
  const Maker make_;
  const std::shared_ptr<Kept> kept_ = std::make_shared<Kept>();

  // Guards what follows.
  std::mutex mutex_;
  std::condition_variable changed_;
  // All of one model, which their leases hold.
  std::vector<Job> jobs_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_VLLM_TOKENIZER_ARCHIVES_H_
