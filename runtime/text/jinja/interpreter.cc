#include "runtime/text/jinja/interpreter.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/text/jinja/filters.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/predicates.h"
#include "runtime/text/jinja/text_operations.h"

namespace orcd::jinja {
namespace {

std::string NotDefined(const std::string& name) { return "'" + name + "' is undefined"; }

}  // namespace

// --- Variables

Scope* Interpreter::NewScope(Scope* parent) {
  return arena().New<Scope>(parent, ArenaVector<Slot>(arena()));
}

Scope* Interpreter::NewScope(Scope* parent, const Body& body) {
  Scope* const scope = NewScope(parent);
  Hide(body, *scope);
  return scope;
}

void Interpreter::Hide(const Body& body, Scope& scope) {
  for (const uint32_t symbol : body.hidden) {
    SetVariable(scope, symbol, MakeUndefined(NotDefined(program_.symbols[symbol])));
  }
}

void Interpreter::SetVariable(Scope& scope, uint32_t symbol, const Value& value) {
  Charge(scope.slots.size() / 8);
  for (Slot& slot : scope.slots.items()) {
    if (slot.symbol != symbol) continue;
    slot.value = value;
    return;
  }
  scope.slots.Add({symbol, value});
}

Value Interpreter::FindVariable(uint32_t symbol) {
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    Charge(scope->slots.size() / 8);
    for (const Slot& slot : scope->slots.items()) {
      if (slot.symbol == symbol) return slot.value;
    }
  }
  return MakeUndefined(NotDefined(program_.symbols[symbol]));
}

absl::Status Interpreter::Assign(const Target& target, const Value& value) {
  if (target.is_tuple) {
    ORCD_ASSIGN_OR_RETURN(const auto items, ToList(value));
    if (items.size() != target.parts.size()) {
      return Fail(absl::StrCat("cannot unpack ", items.size(), " values into ", target.parts.size(),
                               " names"));
    }
    for (size_t i = 0; i < items.size(); ++i) {
      ORCD_RETURN_IF_ERROR(Assign(target.parts[i], items[i]));
    }
    return absl::OkStatus();
  }
  if (target.attribute.empty()) {
    SetVariable(*scope_, target.symbol, value);
    return absl::OkStatus();
  }
  const Value object = FindVariable(target.symbol);
  if (!object.Is(Kind::kNamespace)) return Fail("cannot assign attribute on non-namespace object");
  ArenaVector<Variable>& variables = object.name_space().variables;
  ORCD_RETURN_IF_ERROR(Step(variables.size() / 8));
  for (Variable& variable : variables.items()) {
    if (variable.name != target.attribute) continue;
    variable.value = value;
    return absl::OkStatus();
  }
  variables.Add({target.attribute, value});
  return absl::OkStatus();
}

// --- Statements

absl::StatusOr<std::span<const Text>> Interpreter::Run() {
  Scope* const globals = NewScope(nullptr);
  const auto set = [&](std::string_view name, const Value& value) {
    const auto symbol = std::ranges::find(program_.symbols, name);
    if (symbol == program_.symbols.end()) return;
    SetVariable(*globals, static_cast<uint32_t>(symbol - program_.symbols.begin()), value);
  };
  for (const Function& function : GlobalFunctions()) {
    set(function.name, Value(arena().New<Function>(function)));
  }
  for (const Variable& variable : context().variables()) set(variable.name, variable.value);
  ArenaVector<Text> output(arena());
  output_ = &output;
  scope_ = NewScope(globals, program_.body);
  ORCD_RETURN_IF_ERROR(RunBlock(program_.body.block).status());
  ORCD_RETURN_IF_ERROR(Step());
  return std::span<const Text>(output.items());
}

absl::Status Interpreter::Write(const Text& text) {
  if (text.bytes.empty()) return absl::OkStatus();
  output_bytes_ += text.bytes.size();
  if (output_bytes_ > kMaxPromptBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("line ", line_, ": the prompt is longer than ",
                                                     kMaxPromptBytes >> 20, " MiB"));
  }
  output_->Add(text);
  return absl::OkStatus();
}

template <typename RunT>
absl::StatusOr<Text> Interpreter::Capture(RunT run) {
  ArenaVector<Text> parts(arena());
  ArenaVector<Text>* const outer = std::exchange(output_, &parts);
  const size_t outer_bytes = output_bytes_;
  const absl::Status status = run();
  output_ = outer;
  output_bytes_ = outer_bytes;
  ORCD_RETURN_IF_ERROR(status);
  if (parts.size() == 1 && !parts[0].markup) return parts[0];
  return Join(*this, {}, parts.items(), /*escapes=*/false);
}

Interpreter::FlowOr Interpreter::RunBlock(const Block& block) {
  const Level level(depth_);
  if (depth_ > kMaxCallDepth) return TooDeep();
  for (const Stmt* stmt : block) {
    ORCD_ASSIGN_OR_RETURN(const Flow flow, RunStmt(*stmt));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::FlowOr Interpreter::RunInScope(const Body& body, Scope* scope) {
  Scope* const outer = std::exchange(scope_, scope);
  FlowOr flow = RunBlock(body.block);
  scope_ = outer;
  return flow;
}

Interpreter::FlowOr Interpreter::RunStmt(const Stmt& stmt) {
  line_ = stmt.line;
  ORCD_RETURN_IF_ERROR(Step());
  switch (stmt.type) {
    case Stmt::Type::kData:
      ORCD_RETURN_IF_ERROR(Write(stmt.data));
      return Flow::kNext;
    case Stmt::Type::kOutput: {
      ORCD_ASSIGN_OR_RETURN(const Value value, Eval(*stmt.expr));
      ORCD_ASSIGN_OR_RETURN(const Text text, ToText(value));
      ORCD_RETURN_IF_ERROR(Write(text));
      return Flow::kNext;
    }
    case Stmt::Type::kIf:
      return RunIf(stmt);
    case Stmt::Type::kFor: {
      ORCD_ASSIGN_OR_RETURN(const Value iterable, Eval(*stmt.expr));
      return RunFor(stmt, iterable, 0);
    }
    case Stmt::Type::kSet: {
      ORCD_ASSIGN_OR_RETURN(const Value value, Eval(*stmt.expr));
      ORCD_RETURN_IF_ERROR(Assign(stmt.targets[0], value));
      return Flow::kNext;
    }
    case Stmt::Type::kSetBlock:
    case Stmt::Type::kFilterBlock: {
      Flow flow = Flow::kNext;
      ORCD_ASSIGN_OR_RETURN(const Text text, Capture([&]() -> absl::Status {
                              ORCD_ASSIGN_OR_RETURN(
                                  flow, RunInScope(stmt.body, NewScope(scope_, stmt.body)));
                              return absl::OkStatus();
                            }));
      if (flow != Flow::kNext) return flow;
      ORCD_ASSIGN_OR_RETURN(const Value value, EvalSuffixes(Make(text), stmt.expr->suffixes));
      if (stmt.type == Stmt::Type::kSetBlock) {
        ORCD_RETURN_IF_ERROR(Assign(stmt.targets[0], value));
      } else {
        ORCD_ASSIGN_OR_RETURN(const Text filtered, ToText(value));
        ORCD_RETURN_IF_ERROR(Write(filtered));
      }
      return Flow::kNext;
    }
    case Stmt::Type::kMacro:
      for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) scope->is_kept = true;
      SetVariable(*scope_, stmt.symbol, Value(arena().New<Macro>(&stmt.macro, scope_)));
      return Flow::kNext;
    case Stmt::Type::kCallBlock:
      ORCD_RETURN_IF_ERROR(RunCallBlock(stmt));
      return Flow::kNext;
    case Stmt::Type::kWith:
      return RunWith(stmt);
    case Stmt::Type::kScope:
      return RunInScope(stmt.body, NewScope(scope_, stmt.body));
    case Stmt::Type::kBreak:
      return Flow::kBreak;
    case Stmt::Type::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::FlowOr Interpreter::RunIf(const Stmt& stmt) {
  for (const Branch& branch : stmt.branches) {
    ORCD_ASSIGN_OR_RETURN(const Value condition, Eval(*branch.condition));
    if (IsTrue(condition)) return RunBlock(branch.body);
  }
  return RunBlock(stmt.else_body.block);
}

Interpreter::FlowOr Interpreter::RunWith(const Stmt& stmt) {
  Scope* const scope = NewScope(scope_, stmt.body);
  for (size_t i = 0; i < stmt.values.size(); ++i) {
    ORCD_ASSIGN_OR_RETURN(const Value value, Eval(*stmt.values[i]));
    SetVariable(*scope, stmt.targets[i].symbol, value);
  }
  return RunInScope(stmt.body, scope);
}

absl::Status Interpreter::RunCallBlock(const Stmt& stmt) {
  const Expr& expr = *stmt.expr;
  const Suffix& call = expr.suffixes.back();
  ORCD_ASSIGN_OR_RETURN(const Value object, Eval(*expr.operands[0]));
  ORCD_ASSIGN_OR_RETURN(
      const Value callee,
      EvalSuffixes(object, std::span(expr.suffixes).first(expr.suffixes.size() - 1)));
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) scope->is_kept = true;
  const Keyword caller = {"caller", Value(arena().New<Macro>(&stmt.macro, scope_))};
  ORCD_ASSIGN_OR_RETURN(const Arguments arguments, EvalArguments(call.arguments, &caller));
  ORCD_ASSIGN_OR_RETURN(const Value result, Call(callee, arguments));
  ORCD_ASSIGN_OR_RETURN(const Text text, ToText(result));
  return Write(text);
}

// --- Loops

Interpreter::FlowOr Interpreter::RunFor(const Stmt& stmt, const Value& iterable, int64_t depth0) {
  ORCD_ASSIGN_OR_RETURN(const Iterator iterator, Iterate(iterable));
  Scope* const outer = scope_;
  auto* const loop = arena().New<Loop>(&stmt, outer, iterator, stmt.condition != nullptr, depth0);
  Scope* scope = nullptr;
  Flow flow = Flow::kNext;
  bool any_ended = false;
  while (flow != Flow::kBreak) {
    ORCD_RETURN_IF_ERROR(Peek(*loop));
    if (!loop->has_after) break;
    loop->before = std::exchange(loop->current, loop->after);
    loop->has_after = false;
    ++loop->index0;
    if (scope == nullptr || scope->is_kept) {
      scope = NewScope(outer);
    } else {
      scope->slots.Clear();
    }
    Hide(stmt.body, *scope);
    scope_ = scope;
    SetVariable(*scope, program_.loop, Value(loop));
    const absl::Status assigned = Assign(stmt.targets[0], loop->current);
    FlowOr result = assigned.ok() ? RunBlock(stmt.body.block) : FlowOr(assigned);
    scope_ = outer;
    ORCD_ASSIGN_OR_RETURN(flow, result);
    any_ended |= flow == Flow::kNext;
    line_ = stmt.line;
  }
  // Jinja's `else` also runs if every pass was left by break or continue.
  if (!any_ended) return RunInScope(stmt.else_body, NewScope(outer, stmt.else_body));
  return Flow::kNext;
}

absl::StatusOr<bool> Interpreter::FetchItem(Loop& loop, Value& item) {
  while (true) {
    ORCD_ASSIGN_OR_RETURN(const bool found, Next(loop.iterator, item));
    if (!found || !loop.filters) return found;
    Scope* const outer = std::exchange(scope_, NewScope(loop.scope));
    const absl::Status assigned = Assign(loop.stmt->targets[0], item);
    Result condition = assigned.ok() ? Eval(*loop.stmt->condition) : Result(assigned);
    scope_ = outer;
    ORCD_RETURN_IF_ERROR(condition.status());
    if (IsTrue(*condition)) return true;
  }
}

absl::Status Interpreter::Peek(Loop& loop) {
  if (loop.has_after) return absl::OkStatus();
  ORCD_ASSIGN_OR_RETURN(loop.has_after, FetchItem(loop, loop.after));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Interpreter::LoopLength(Loop& loop) {
  if (loop.length >= 0) return loop.length;
  const Value& source = loop.iterator.source;
  if (!loop.filters && !source.Is(Kind::kGenerator)) {
    ORCD_ASSIGN_OR_RETURN(loop.length, Length(source));
    return loop.length;
  }
  ArenaVector<Value> rest(arena());
  if (loop.has_after) rest.Add(loop.after);
  for (Value item;;) {
    ORCD_ASSIGN_OR_RETURN(const bool found, FetchItem(loop, item));
    if (!found) break;
    rest.Add(item);
  }
  loop.has_after = false;
  loop.filters = false;
  loop.iterator = {MakeList(rest.items())};
  loop.length = loop.index0 + 1 + static_cast<int64_t>(rest.size());
  return loop.length;
}

namespace {

absl::StatusOr<Value> Cycle(Runtime& runtime, const Value& object, const Arguments& arguments) {
  if (arguments.positional.empty()) return runtime.Fail("no items for cycling given");
  return arguments.positional[object.loop().index0 % arguments.positional.size()];
}

absl::StatusOr<Value> Changed(Runtime& runtime, const Value& object, const Arguments& arguments) {
  Loop& loop = object.loop();
  bool same = loop.has_seen && loop.seen.size() == arguments.positional.size();
  for (size_t i = 0; same && i < loop.seen.size(); ++i) {
    ORCD_ASSIGN_OR_RETURN(same, runtime.Equal(loop.seen[i], arguments.positional[i]));
  }
  loop.seen = arguments.positional;
  loop.has_seen = true;
  return Value::Bool(!same);
}

}  // namespace

Interpreter::Result Interpreter::GetLoopAttribute(Loop& loop, std::string_view name) {
  const auto method = [&](auto call) {
    return Value(arena().New<Function>(Value(&loop), name, Parameters(), nullptr, call));
  };
  if (name == "index") return Value::Int(loop.index0 + 1);
  if (name == "index0") return Value::Int(loop.index0);
  if (name == "first") return Value::Bool(loop.index0 == 0);
  if (name == "depth") return Value::Int(loop.depth0 + 1);
  if (name == "depth0") return Value::Int(loop.depth0);
  if (name == "cycle") return method(Cycle);
  if (name == "changed") return method(Changed);
  if (name == "previtem") {
    return loop.index0 > 0 ? loop.before : MakeUndefined("there is no previous item");
  }
  if (name == "last" || name == "nextitem") {
    ORCD_RETURN_IF_ERROR(Peek(loop));
    if (name == "last") return Value::Bool(!loop.has_after);
    return loop.has_after ? loop.after : MakeUndefined("there is no next item");
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    ORCD_ASSIGN_OR_RETURN(const int64_t length, LoopLength(loop));
    if (name == "length") return Value::Int(length);
    return Value::Int(length - loop.index0 - (name == "revindex" ? 0 : 1));
  }
  return MakeUndefined(std::string("'jinja2.runtime.LoopContext object' has no attribute '")
                           .append(name)
                           .append("'"));
}

// --- Expressions

Interpreter::Result Interpreter::Eval(const Expr& expr) {
  ORCD_RETURN_IF_ERROR(Step());
  if (expr.type == Expr::Type::kConstant) return expr.constant;
  line_ = expr.line;
  if (expr.type == Expr::Type::kName) return FindVariable(expr.symbol);
  const Level level(depth_);
  if (depth_ > kMaxCallDepth) return TooDeep();
  switch (expr.type) {
    case Expr::Type::kList:
    case Expr::Type::kTuple:
      return EvalSequence(expr);
    case Expr::Type::kDict:
      return EvalDict(expr);
    case Expr::Type::kUnary:
      return EvalUnary(expr);
    case Expr::Type::kArithmetic:
      return EvalArithmetic(expr);
    case Expr::Type::kCompare:
      return EvalCompare(expr);
    case Expr::Type::kConcatenate:
      return EvalConcatenate(expr);
    case Expr::Type::kAnd:
    case Expr::Type::kOr:
      return EvalLogic(expr);
    case Expr::Type::kConditional:
      return EvalConditional(expr);
    default: {
      ORCD_ASSIGN_OR_RETURN(const Value value, Eval(*expr.operands[0]));
      return EvalSuffixes(value, expr.suffixes);
    }
  }
}

Interpreter::Result Interpreter::EvalUnary(const Expr& expr) {
  ORCD_ASSIGN_OR_RETURN(Value value, Eval(*expr.operands[0]));
  for (size_t i = expr.operators.size(); i > 0; --i) {
    ORCD_RETURN_IF_ERROR(Step());
    switch (expr.operators[i - 1]) {
      case Operator::kNot:
        value = Value::Bool(!IsTrue(value));
        break;
      case Operator::kNegative: {
        ORCD_ASSIGN_OR_RETURN(value, Negate(value));
        break;
      }
      default:
        if (!value.IsNumber()) return TypeError("is a bad operand for unary +", value);
        if (value.IsInteger()) value = Value::Int(value.integer());
    }
  }
  return value;
}

Interpreter::Result Interpreter::EvalArithmetic(const Expr& expr) {
  ORCD_ASSIGN_OR_RETURN(Value value, Eval(*expr.operands[0]));
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    ORCD_ASSIGN_OR_RETURN(const Value operand, Eval(*expr.operands[i + 1]));
    line_ = expr.line;
    ORCD_ASSIGN_OR_RETURN(value, Apply(expr.operators[i], value, operand));
  }
  return value;
}

absl::StatusOr<bool> Interpreter::Compare(Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::kEqual:
      return Equal(a, b);
    case Operator::kNotEqual: {
      ORCD_ASSIGN_OR_RETURN(const bool equal, Equal(a, b));
      return !equal;
    }
    case Operator::kLess:
      return Less(a, b, "<");
    case Operator::kGreater:
      return Less(b, a, ">");
    case Operator::kLessOrEqual:
    case Operator::kGreaterOrEqual: {
      const bool is_less = op == Operator::kLessOrEqual;
      ORCD_ASSIGN_OR_RETURN(const bool strictly,
                            Less(is_less ? a : b, is_less ? b : a, is_less ? "<=" : ">="));
      return strictly ? absl::StatusOr<bool>(true) : Equal(a, b);
    }
    default: {
      ORCD_ASSIGN_OR_RETURN(const bool contains, Contains(b, a));
      return contains == (op == Operator::kIn);
    }
  }
}

Interpreter::Result Interpreter::EvalCompare(const Expr& expr) {
  ORCD_ASSIGN_OR_RETURN(Value left, Eval(*expr.operands[0]));
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    ORCD_ASSIGN_OR_RETURN(const Value right, Eval(*expr.operands[i + 1]));
    line_ = expr.line;
    ORCD_ASSIGN_OR_RETURN(const bool holds, Compare(expr.operators[i], left, right));
    if (!holds) return Value::Bool(false);
    left = right;
  }
  return Value::Bool(true);
}

Interpreter::Result Interpreter::EvalConcatenate(const Expr& expr) {
  ArenaVector<Text> parts(arena());
  parts.Reserve(expr.operands.size());
  for (const Expr* operand : expr.operands) {
    ORCD_ASSIGN_OR_RETURN(const Value value, Eval(*operand));
    ORCD_ASSIGN_OR_RETURN(const Text text, ToText(value));
    parts.Add(text);
  }
  ORCD_ASSIGN_OR_RETURN(const Text text, Join(*this, {}, parts.items(), /*escapes=*/false));
  return Make(text);
}

Interpreter::Result Interpreter::EvalLogic(const Expr& expr) {
  const bool ends_with = expr.type == Expr::Type::kOr;
  Value value;
  for (const Expr* operand : expr.operands) {
    ORCD_ASSIGN_OR_RETURN(value, Eval(*operand));
    if (IsTrue(value) == ends_with) break;
  }
  return value;
}

Interpreter::Result Interpreter::EvalConditional(const Expr& expr) {
  ORCD_ASSIGN_OR_RETURN(const Value condition, Eval(*expr.operands[1]));
  if (IsTrue(condition)) return Eval(*expr.operands[0]);
  if (expr.operands[2] != nullptr) return Eval(*expr.operands[2]);
  return MakeUndefined(
      "the inline if-expression evaluated to false and no else section was defined");
}

Interpreter::Result Interpreter::EvalSequence(const Expr& expr) {
  ArenaVector<Value> items(arena());
  items.Reserve(expr.operands.size());
  for (const Expr* operand : expr.operands) {
    ORCD_ASSIGN_OR_RETURN(const Value item, Eval(*operand));
    items.Add(item);
  }
  return Value(arena().New<Sequence>(items.items()), expr.type == Expr::Type::kTuple);
}

Interpreter::Result Interpreter::EvalDict(const Expr& expr) {
  ArenaVector<DictEntry> entries(arena());
  for (size_t i = 0; i < expr.operands.size(); i += 2) {
    ORCD_ASSIGN_OR_RETURN(const Value key, Eval(*expr.operands[i]));
    ORCD_ASSIGN_OR_RETURN(const Value value, Eval(*expr.operands[i + 1]));
    if (key.Is(Kind::kList) || key.Is(Kind::kDict)) return TypeError("is unhashable", key);
    bool is_new = true;
    for (DictEntry& entry : entries.items()) {
      ORCD_ASSIGN_OR_RETURN(const bool equal, Equal(entry.key, key));
      if (!equal) continue;
      entry.value = value;
      is_new = false;
      break;
    }
    if (is_new) entries.Add({key, value});
  }
  return MakeDict(entries.items());
}

Interpreter::Result Interpreter::EvalSuffixes(Value value, std::span<const Suffix> suffixes) {
  for (const Suffix& suffix : suffixes) {
    ORCD_RETURN_IF_ERROR(Step());
    line_ = suffix.line;
    ORCD_ASSIGN_OR_RETURN(value, EvalSuffix(value, suffix));
  }
  return value;
}

Interpreter::Result Interpreter::EvalSuffix(const Value& value, const Suffix& suffix) {
  switch (suffix.type) {
    case Suffix::Type::kAttribute:
      return GetAttribute(value, suffix.name);
    case Suffix::Type::kItem: {
      ORCD_ASSIGN_OR_RETURN(const Value key, Eval(*suffix.parts[0]));
      line_ = suffix.line;
      return GetItem(value, key);
    }
    case Suffix::Type::kSlice: {
      Value parts[3];
      for (int i = 0; i < 3; ++i) {
        if (suffix.parts[i] == nullptr) continue;
        ORCD_ASSIGN_OR_RETURN(parts[i], Eval(*suffix.parts[i]));
      }
      const auto part = [&](int i) { return suffix.parts[i] == nullptr ? nullptr : &parts[i]; };
      return GetSlice(value, part(0), part(1), part(2));
    }
    case Suffix::Type::kCall: {
      ORCD_ASSIGN_OR_RETURN(const Arguments arguments, EvalArguments(suffix.arguments));
      line_ = suffix.line;
      return Call(value, arguments);
    }
    case Suffix::Type::kFilter: {
      if (suffix.filter == nullptr) {
        return Fail(std::string("No filter named '").append(suffix.name).append("'."));
      }
      ORCD_ASSIGN_OR_RETURN(const Arguments arguments, EvalArguments(suffix.arguments));
      line_ = suffix.line;
      return ApplyFilter(*suffix.filter, value, arguments);
    }
    default: {
      if (suffix.predicate == nullptr) {
        return Fail(std::string("No test named '").append(suffix.name).append("'."));
      }
      ORCD_ASSIGN_OR_RETURN(const Arguments arguments, EvalArguments(suffix.arguments));
      line_ = suffix.line;
      ORCD_ASSIGN_OR_RETURN(const bool holds, ApplyPredicate(*suffix.predicate, value, arguments));
      return Value::Bool(holds == (suffix.type == Suffix::Type::kTest));
    }
  }
}

absl::StatusOr<Arguments> Interpreter::EvalArguments(const CallArguments& arguments,
                                                     const Keyword* extra) {
  ArenaVector<Value> positional(arena());
  positional.Reserve(arguments.positional.size());
  for (const Expr* expr : arguments.positional) {
    ORCD_ASSIGN_OR_RETURN(const Value value, Eval(*expr));
    positional.Add(value);
  }
  ArenaVector<Keyword> keywords(arena());
  for (const KeywordArgument& keyword : arguments.keywords) {
    ORCD_ASSIGN_OR_RETURN(const Value value, Eval(*keyword.value));
    keywords.Add({keyword.name, value});
  }
  if (extra != nullptr) keywords.Add(*extra);
  if (arguments.more_positional != nullptr) {
    ORCD_ASSIGN_OR_RETURN(const Value more, Eval(*arguments.more_positional));
    ORCD_ASSIGN_OR_RETURN(const auto items, ToList(more));
    ORCD_RETURN_IF_ERROR(Step(items.size()));
    for (const Value& item : items) positional.Add(item);
  }
  if (arguments.more_keywords != nullptr) {
    ORCD_ASSIGN_OR_RETURN(const Value more, Eval(*arguments.more_keywords));
    if (!more.Is(Kind::kDict)) return TypeError("is no mapping, as ** needs one", more);
    ORCD_RETURN_IF_ERROR(Step(more.dict().entries.size()));
    for (const DictEntry& entry : more.dict().entries) {
      ORCD_ASSIGN_OR_RETURN(const Text name, String(entry.key));
      keywords.Add({name.bytes, entry.value});
    }
  }
  return Arguments{positional.items(), keywords.items()};
}

// --- Calls

Interpreter::Result Interpreter::Call(const Value& callee, const Arguments& arguments) {
  switch (callee.kind()) {
    case Kind::kMacro:
      return CallMacro(callee.macro(), arguments);
    case Kind::kFunction: {
      const Function& function = callee.function();
      if (function.call == nullptr) {
        return function.call_with_arguments(*this, function.object, arguments);
      }
      ORCD_ASSIGN_OR_RETURN(const Bound bound,
                            Bind(*this, function.name, function.parameters, arguments));
      return function.call(*this, function.object, bound);
    }
    case Kind::kLoop: {
      Loop& loop = callee.loop();
      if (!loop.stmt->recursive) return Fail("only a loop that is 'recursive' can be called");
      if (arguments.positional.size() != 1 || !arguments.keywords.empty()) {
        return Fail("loop() takes one argument");
      }
      Scope* const outer = std::exchange(scope_, loop.scope);
      absl::StatusOr<Text> text = Capture(
          [&] { return RunFor(*loop.stmt, arguments.positional[0], loop.depth0 + 1).status(); });
      scope_ = outer;
      ORCD_RETURN_IF_ERROR(text.status());
      return Make(*text);
    }
    default:
      return TypeError("is not callable", callee);
  }
}

Interpreter::Result Interpreter::CallMacro(const Macro& macro, const Arguments& arguments) {
  const MacroBody& body = *macro.body;
  const auto fail = [&](std::string_view why) {
    return Fail(std::string("macro '").append(body.name).append("' ").append(why));
  };
  Scope* const scope = NewScope(macro.scope, body.body);
  ORCD_RETURN_IF_ERROR(Step(arguments.keywords.size() * body.parameters.size() / 4));
  // Keyword arguments that name no parameter.
  ArenaVector<Keyword> others(arena());
  for (const Keyword& keyword : arguments.keywords) {
    const auto is_it = [&](const Parameter& parameter) {
      return program_.symbols[parameter.symbol] == keyword.name;
    };
    if (std::ranges::none_of(body.parameters, is_it)) others.Add(keyword);
  }
  Scope* const outer = std::exchange(scope_, scope);
  absl::StatusOr<Text> text = Capture([&]() -> absl::Status {
    // Defaults see all arguments, and none that is not given.
    std::vector<const Parameter*> defaults;
    for (size_t i = 0; i < body.parameters.size(); ++i) {
      const Parameter& parameter = body.parameters[i];
      const std::string& name = program_.symbols[parameter.symbol];
      const auto keyword = std::ranges::find(arguments.keywords, name, &Keyword::name);
      const bool is_keyword = keyword != arguments.keywords.end();
      const bool is_positional = i < arguments.positional.size();
      if (is_keyword && is_positional) return fail("got two values for '" + name + "'");
      if (!is_keyword && !is_positional) defaults.push_back(&parameter);
      SetVariable(*scope, parameter.symbol,
                  is_keyword ? keyword->value
                  : is_positional
                      ? arguments.positional[i]
                      : MakeUndefined(absl::StrCat("parameter '", name, "' was not provided")));
    }
    for (const Parameter* parameter : defaults) {
      if (parameter->default_value == nullptr) continue;
      ORCD_ASSIGN_OR_RETURN(const Value value, Eval(*parameter->default_value));
      SetVariable(*scope, parameter->symbol, value);
    }
    if (body.uses_caller) {
      const bool is_parameter = std::ranges::find(body.parameters, program_.caller,
                                                  &Parameter::symbol) != body.parameters.end();
      const auto caller = std::ranges::find(others.items(), "caller", &Keyword::name);
      if (!is_parameter) {
        const bool given = caller != others.items().end();
        SetVariable(*scope, program_.caller,
                    given ? caller->value : MakeUndefined("No caller defined"));
      }
    }
    ArenaVector<DictEntry> kwargs(arena());
    for (const Keyword& other : others.items()) {
      if (body.uses_caller && other.name == "caller") continue;
      if (!body.uses_kwargs) {
        return fail(std::string("takes no keyword argument '").append(other.name).append("'"));
      }
      kwargs.Add({MakeString(other.name), other.value});
    }
    if (body.uses_kwargs) SetVariable(*scope, program_.kwargs, MakeDict(kwargs.items()));
    const size_t named = std::min(arguments.positional.size(), body.parameters.size());
    if (body.uses_varargs) {
      SetVariable(*scope, program_.varargs,
                  Value(arena().New<Sequence>(arguments.positional.subspan(named)), true));
    } else if (named < arguments.positional.size()) {
      return fail(absl::StrCat("takes not more than ", body.parameters.size(), " argument(s)"));
    }
    return RunBlock(body.body.block).status();
  });
  scope_ = outer;
  ORCD_RETURN_IF_ERROR(text.status());
  return Make(*text);
}

}  // namespace orcd::jinja
