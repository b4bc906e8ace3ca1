// The constraint library's state of a rule, or of a sequence that keeps one.
#ifndef ORCD_RUNTIME_CONSTRAINT_LLG_STATE_H_
#define ORCD_RUNTIME_CONSTRAINT_LLG_STATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "runtime/constraint/constraint_compiler.h"
#include "runtime/constraint/library_error.h"
#include "runtime/constraint/llg_call.h"
#include "runtime/constraint/llg_library.h"
#include "runtime/constraint/llg_vocabulary.h"
#include "runtime/constraint/rule_text.h"

namespace orcd {

// The bits of a mask's last word that are tokens; the others are set in every mask.
inline uint32_t TokensOfLastWord(int vocab) {
  return vocab % 32 == 0 ? ~0u : (1u << vocab % 32) - 1;
}

// Its memory is bounded: by ConstraintLimits::rule_bytes, or in clones by sequence_bytes, and by
// held_bytes with all other states. A state that failed stays failed. One thread at a time; several
// may clone one state at once.
class LlgState {
 public:
  // Reads a rule; the state has failed if the library refuses it or if a bound is exceeded, also
  // that of limits.compile_time. `vocabulary` must outlive the state and its clones.
  static std::unique_ptr<LlgState> Compile(const LlgVocabulary& vocabulary, const RuleText& text,
                                           const ConstraintLimits& limits);

  // The same state for one sequence. Its failure is `kAllMemory` if all states together hold too
  // much. Requires that this one has not failed.
  std::unique_ptr<LlgState> Clone() const;

  // The rest returns false if the state has failed.
  //
  // The tokens that may come next, as words of a TokenMask: end ids exactly where the rule may end.
  // Also false if there are none.
  bool ComputeMask(std::vector<uint32_t>& words);
  // The tokens that must come next, up to the first that ends the generation and at most
  // kMaxForced.
  bool ComputeForced(std::vector<int32_t>& tokens);
  bool Accept(int32_t token);
  // Also fails for rules that the library cannot undo: those of a client's grammar with `stop` or
  // `max_tokens`.
  bool Rollback(size_t count);

  // True if the output must end, or the state has failed.
  bool IsStopped() const;
  // True if the output may end; false if the state fails meanwhile.
  bool MayEnd();

  bool HasFailed() const;
  // Requires HasFailed().
  LibraryError error() const;

  // Memory that it holds beyond what it shares with the state that it was cloned from.
  int64_t bytes() const { return bytes_; }

  static constexpr size_t kMaxForced = 4096;

 private:
  struct Free {
    void operator()(OrcdMatcher* matcher) const { orcd_matcher_free(matcher); }
  };

  LlgState(const LlgVocabulary& vocabulary, const ConstraintLimits& limits, size_t most_bytes)
      : vocabulary_(vocabulary), limits_(limits), most_bytes_(static_cast<int64_t>(most_bytes)) {}

  // Calls the library within the bounds.
  void Call(absl::FunctionRef<void()> call, absl::Duration time = absl::InfiniteDuration());

  const LlgVocabulary& vocabulary_;
  const ConstraintLimits limits_;
  const int64_t most_bytes_;
  // Null if a bound was exceeded before there was one.
  std::unique_ptr<OrcdMatcher, Free> matcher_;
  int64_t bytes_ = 0;
  LibraryStop stop_ = LibraryStop::kNone;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_LLG_STATE_H_
