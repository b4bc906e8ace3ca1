// Runs a template's program.
#ifndef ORCD_RUNTIME_TEXT_JINJA_INTERPRETER_H_
#define ORCD_RUNTIME_TEXT_JINJA_INTERPRETER_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/runtime.h"

namespace orcd::jinja {

struct Slot {
  uint32_t symbol;
  Value value;
};

// The variables of a block; those of `parent` are visible in it.
struct Scope {
  Scope* parent;
  ArenaVector<Slot> slots;
  // True if a macro keeps it.
  bool is_kept = false;
};

// A loop in progress: the variable `loop`.
struct Loop {
  const Stmt* stmt;
  // The scope around the loop.
  Scope* scope;
  Iterator iterator;
  // False once the items that are left have been filtered.
  bool filters;
  int64_t depth0;
  int64_t index0 = -1;
  // -1: not yet known.
  int64_t length = -1;
  Value before = {};
  Value current = {};
  // Valid if has_after: the item after the current one, fetched already.
  Value after = {};
  bool has_after = false;
  // The last arguments of loop.changed().
  std::span<const Value> seen = {};
  bool has_seen = false;
};

class Interpreter final : public Runtime {
 public:
  Interpreter(const Program& program, Context& context) : Runtime(context), program_(program) {}

  // The program's output, in the arena.
  absl::StatusOr<std::span<const Text>> Run();

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  using FlowOr = absl::StatusOr<Flow>;
  using Result = absl::StatusOr<Value>;

  Scope* NewScope(Scope* parent);
  // A scope for `body`.
  Scope* NewScope(Scope* parent, const Body& body);
  void SetVariable(Scope& scope, uint32_t symbol, const Value& value);
  Value FindVariable(uint32_t symbol);
  absl::Status Assign(const Target& target, const Value& value);
  absl::Status Write(const Text& text);

  FlowOr RunBlock(const Block& block);
  // The same in a scope of its own.
  FlowOr RunInScope(const Body& body, Scope* scope);
  void Hide(const Body& body, Scope& scope);
  FlowOr RunStmt(const Stmt& stmt);
  FlowOr RunIf(const Stmt& stmt);
  FlowOr RunFor(const Stmt& stmt, const Value& iterable, int64_t depth0);
  FlowOr RunWith(const Stmt& stmt);
  absl::Status RunCallBlock(const Stmt& stmt);
  // Collects the output of `run`.
  template <typename RunT>
  absl::StatusOr<Text> Capture(RunT run);

  // The next item of the loop that its condition takes.
  absl::StatusOr<bool> FetchItem(Loop& loop, Value& item);
  absl::Status Peek(Loop& loop);
  absl::StatusOr<int64_t> LoopLength(Loop& loop);
  Result GetLoopAttribute(Loop& loop, std::string_view name) override;

  Result Eval(const Expr& expr);
  Result EvalUnary(const Expr& expr);
  Result EvalArithmetic(const Expr& expr);
  Result EvalCompare(const Expr& expr);
  absl::StatusOr<bool> Compare(Operator op, const Value& a, const Value& b);
  Result EvalConcatenate(const Expr& expr);
  Result EvalLogic(const Expr& expr);
  Result EvalConditional(const Expr& expr);
  Result EvalSequence(const Expr& expr);
  Result EvalDict(const Expr& expr);
  Result EvalSuffixes(Value value, std::span<const Suffix> suffixes);
  Result EvalSuffix(const Value& value, const Suffix& suffix);
  absl::StatusOr<Arguments> EvalArguments(const CallArguments& arguments,
                                          const Keyword* extra = nullptr);

  Result Call(const Value& callee, const Arguments& arguments) override;
  Result CallMacro(const Macro& macro, const Arguments& arguments);

  const Program& program_;
  Scope* scope_ = nullptr;
  ArenaVector<Text>* output_ = nullptr;
  size_t output_bytes_ = 0;
};

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_INTERPRETER_H_
