#include "runtime/model/verify.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/error.h"
#include "runtime/model/load_cancelled.h"
#include "runtime/model/non_finite.h"
#include "runtime/model/sha256.h"

namespace orcd {
namespace {

// Small enough that a piece stays in a core's cache between the sum and the search for NaNs.
constexpr uint64_t kPiece = uint64_t{1} << 20;

// A chunk of a file, and the tensors that have bytes in it.
struct Chunk {
  std::span<const std::byte> bytes;
  std::vector<const TensorView*> tensors;
};

std::vector<Chunk> CutIntoChunks(const GgufReader& gguf) {
  std::vector<Chunk> chunks;
  for (const MappedFile& file : gguf.files()) {
    const std::span<const std::byte> bytes = file.bytes();
    const size_t first = chunks.size();
    for (uint64_t begin = 0; begin < bytes.size(); begin += kDigestChunk) {
      chunks.push_back(
          {bytes.subspan(begin, std::min<uint64_t>(kDigestChunk, bytes.size() - begin)), {}});
    }
    for (const TensorView& tensor : gguf.tensors()) {
      if (tensor.data.data() < bytes.data() || tensor.data.data() >= bytes.data() + bytes.size()) {
        continue;
      }
      const auto offset = static_cast<uint64_t>(tensor.data.data() - bytes.data());
      const uint64_t last = (offset + tensor.data.size() - 1) / kDigestChunk;
      for (uint64_t c = offset / kDigestChunk; c <= last; ++c) {
        chunks[first + c].tensors.push_back(&tensor);
      }
    }
    for (size_t c = first; c < chunks.size(); ++c) {
      std::ranges::sort(chunks[c].tensors, {},
                        [](const TensorView* tensor) { return tensor->data.data(); });
    }
  }
  return chunks;
}

struct BadBlock {
  const TensorView* tensor;
  int64_t block;
};

// Checks the blocks of `tensors` (in order of address) whose first byte is in `piece`, so that
// every block is checked once however the bytes are cut.
std::optional<BadBlock> FindBadBlock(std::span<const std::byte> piece,
                                     std::span<const TensorView* const> tensors) {
  for (const TensorView* tensor : tensors) {
    const std::byte* const data = tensor->data.data();
    const auto block_bytes = static_cast<int64_t>(GetTensorTypeInfo(tensor->type).block_bytes);
    const auto blocks_before = [&](const std::byte* end) {
      const int64_t bytes =
          std::clamp<int64_t>(end - data, 0, static_cast<int64_t>(tensor->data.size()));
      return (bytes + block_bytes - 1) / block_bytes;
    };
    const int64_t begin = blocks_before(piece.data());
    const int64_t end = blocks_before(piece.data() + piece.size());
    const int64_t bad = FindNonFinite(tensor->type, data + begin * block_bytes, end - begin);
    if (bad >= 0) return BadBlock{tensor, begin + bad};
  }
  return std::nullopt;
}

absl::Status NotFiniteError(const BadBlock& bad) {
  const TensorView& tensor = *bad.tensor;
  const TensorTypeInfo& info = GetTensorTypeInfo(tensor.type);
  const uint64_t element = static_cast<uint64_t>(bad.block) * info.block_weights;
  const uint64_t row = element / tensor.row_length();
  // The third dimension of weights is the expert.
  const bool of_experts = tensor.n_dims > 2;
  const uint64_t rows = of_experts ? tensor.ne[1] : tensor.row_count();
  return MakeError(
      absl::StatusCode::kInvalidArgument,
      absl::StrFormat("tensor %s (%s) holds a NaN or an infinity in %srow %d, column %d%s; the "
                      "file is damaged or was made wrongly, fetch or convert it again",
                      QuoteForMessage(tensor.name), info.name,
                      of_experts ? absl::StrFormat("expert %d, ", row / rows) : "", row % rows,
                      element % tensor.row_length(),
                      info.block_weights > 1
                          ? absl::StrFormat(" (the scale of %d weights)", info.block_weights)
                          : ""),
      {.reason = "WEIGHTS_NOT_FINITE", .subject = std::string(tensor.name)});
}

// The state of one reading, shared by its threads. Work is claimed in order: first the sum of the
// whole first file, which takes longest, then chunk after chunk.
class Reading {
 public:
  Reading(const GgufReader& gguf, bool sum_first_file, LoadObserver& observer)
      : first_file_(gguf.files().front().bytes()),
        sum_first_file_(sum_first_file),
        chunks_(CutIntoChunks(gguf)),
        total_(gguf.total_bytes() + (sum_first_file ? first_file_.size() : 0)),
        observer_(observer),
        chunk_sums_(chunks_.size()),
        chunk_bad_(chunks_.size()) {}

  // Runs on every thread until no work is left to claim.
  void Run() {
    if (sum_first_file_ && !first_file_claimed_.exchange(true)) {
      Sha256 sum;
      if (ForEachPiece(first_file_, [&](auto piece) { sum.Update(piece); })) {
        first_file_sum_ = sum.Finish();
      }
    }
    // Chunks after a bad block need no check; those before it are already claimed.
    while (!cancelled_ && !found_bad_) {
      const size_t c = next_chunk_.fetch_add(1);
      if (c >= chunks_.size()) return;
      ReadChunk(c);
    }
  }

  bool cancelled() const { return cancelled_; }
  // The results; valid once every thread is done, unless cancelled.
  const Sha256Sum& first_file_sum() const { return first_file_sum_; }
  const std::vector<Sha256Sum>& chunk_sums() const { return chunk_sums_; }
  std::optional<BadBlock> first_bad() const {
    for (const std::optional<BadBlock>& bad : chunk_bad_) {
      if (bad) return bad;
    }
    return std::nullopt;
  }

 private:
  void ReadChunk(size_t c) {
    const Chunk& chunk = chunks_[c];
    Sha256 sum;
    std::optional<BadBlock> bad;
    const bool whole = ForEachPiece(chunk.bytes, [&](auto piece) {
      sum.Update(piece);
      if (!bad) bad = FindBadBlock(piece, chunk.tensors);
    });
    if (!whole) return;
    chunk_sums_[c] = sum.Finish();
    chunk_bad_[c] = bad;
    if (bad) found_bad_ = true;
  }

  // False if the load was cancelled meanwhile.
  template <typename Visit>
  bool ForEachPiece(std::span<const std::byte> bytes, Visit visit) {
    while (!bytes.empty()) {
      if (cancelled_ || observer_.cancelled()) {
        cancelled_ = true;
        return false;
      }
      const auto piece = bytes.first(std::min<uint64_t>(kPiece, bytes.size()));
      visit(piece);
      bytes = bytes.subspan(piece.size());
      observer_.OnProgress(LoadStage::kVerify, done_.fetch_add(piece.size()) + piece.size(),
                           total_);
    }
    return true;
  }

  const std::span<const std::byte> first_file_;
  const bool sum_first_file_;
  const std::vector<Chunk> chunks_;
  const uint64_t total_;
  LoadObserver& observer_;

  std::atomic<bool> cancelled_ = false;
  std::atomic<bool> found_bad_ = false;
  std::atomic<bool> first_file_claimed_ = false;
  std::atomic<size_t> next_chunk_ = 0;
  std::atomic<uint64_t> done_ = 0;

  // Each element is written by the thread that claimed it, and read after all threads have ended.
  Sha256Sum first_file_sum_ = {};
  std::vector<Sha256Sum> chunk_sums_;
  std::vector<std::optional<BadBlock>> chunk_bad_;
};

void RunOnThreads(Reading& reading, int threads) {
  std::vector<std::jthread> helpers;
  for (int i = 1; i < threads; ++i) {
    try {
      helpers.emplace_back([&reading] { reading.Run(); });
    } catch (const std::system_error&) {
      // The system has no further thread; the existing threads do the work.
      break;
    }
  }
  reading.Run();
}

std::string ToDigest(const std::vector<Sha256Sum>& chunk_sums) {
  Sha256 tree;
  for (const Sha256Sum& sum : chunk_sums) tree.Update(sum);
  return absl::StrCat("sha256-tree:", ToHex(tree.Finish()));
}

}  // namespace

std::string DigestFiles(const GgufReader& gguf, int threads, LoadObserver& observer) {
  Reading reading(gguf, /*sum_first_file=*/false, observer);
  RunOnThreads(reading, threads);
  return ToDigest(reading.chunk_sums());
}

absl::Status CheckSha256Text(std::string_view text) {
  const bool digits = std::ranges::all_of(text, absl::ascii_isxdigit);
  if (text.empty() || (digits && text.size() == 64)) return absl::OkStatus();
  return InvalidField("sha256", absl::StrFormat("has %d characters%s; has to be 64 hexadecimal "
                                                "digits",
                                                text.size(), digits ? "" : ", not all digits"));
}

absl::StatusOr<std::string> VerifyFiles(const GgufReader& gguf, const VerifyOptions& options,
                                        LoadObserver& observer) {
  ORCD_RETURN_IF_ERROR(CheckSha256Text(options.expected_sha256));
  Reading reading(gguf, !options.expected_sha256.empty(), observer);
  RunOnThreads(reading, options.threads);
  if (reading.cancelled()) return LoadCancelled();
  // Checked first: lost bytes read as zeros, and the errors below would blame the file's maker.
  ORCD_RETURN_IF_ERROR(gguf.CheckIntact());
  if (!options.expected_sha256.empty()) {
    const std::string expected = absl::AsciiStrToLower(options.expected_sha256);
    const std::string actual = ToHex(reading.first_file_sum());
    if (actual != expected) {
      const std::string& path = gguf.files().front().path();
      return MakeError(absl::StatusCode::kDataLoss,
                       absl::StrFormat("%s has the SHA-256 %s, expected was %s; fetch the file "
                                       "again, or expect the sum of this one",
                                       path, actual, expected),
                       {.reason = "SHA256_MISMATCH", .subject = path});
    }
  }
  if (const std::optional<BadBlock> bad = reading.first_bad()) return NotFiniteError(*bad);
  return ToDigest(reading.chunk_sums());
}

}  // namespace orcd
