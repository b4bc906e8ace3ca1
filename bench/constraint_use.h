// For benches of constraints: a vocabulary with its compiler.
#ifndef ORCD_BENCH_CONSTRAINT_USE_H_
#define ORCD_BENCH_CONSTRAINT_USE_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/error.h"
#include "runtime/constraint/constraint_compiler.h"
#include "runtime/gguf/gguf_reader.h"
#include "testing/event.h"

namespace orcd {

// Each member needs those above it for as long as it lives.
struct ConstraintUse {
  std::unique_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<ConstraintCompiler> compiler;
};

// Reads the vocabulary of a GGUF file.
inline absl::StatusOr<ConstraintUse> UseConstraints(const std::string& vocabulary,
                                                    const ConstraintLimits& limits) {
  ORCD_ASSIGN_OR_RETURN(const std::unique_ptr<GgufReader> gguf, GgufReader::Open(vocabulary));
  ConstraintUse use;
  ORCD_ASSIGN_OR_RETURN(use.tokenizer, Tokenizer::FromGguf(*gguf));
  ORCD_ASSIGN_OR_RETURN(use.compiler, ConstraintCompiler::Create(*use.tokenizer, limits, nullptr));
  return use;
}

// Waits until the rule is compiled; its error if it is refused.
inline absl::StatusOr<std::shared_ptr<PendingConstraint>> CompileNow(ConstraintCompiler& compiler,
                                                                     const ConstraintSpec& spec) {
  ORCD_ASSIGN_OR_RETURN(std::shared_ptr<PendingConstraint> pending, compiler.Compile(spec, 1));
  const auto ready = std::make_shared<Event>();
  pending->OnReady([ready] { ready->Notify(); });
  while (!ready->WaitFor(absl::Seconds(1))) {
  }
  ORCD_RETURN_IF_ERROR(pending->status());
  return pending;
}

}  // namespace orcd

#endif  // ORCD_BENCH_CONSTRAINT_USE_H_
