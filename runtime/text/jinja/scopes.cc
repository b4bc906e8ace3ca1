#include "runtime/text/jinja/scopes.h"

#include <vector>

#include "absl/container/flat_hash_set.h"

namespace orcd::jinja {
namespace {

// The names of one scope, in the order in which the compiler of Jinja meets them.
class Names {
 public:
  explicit Names(const Names* outer) : outer_(outer) {}

  void AddParameter(uint32_t symbol) { used_.insert(symbol); }

  void Visit(const Block& block, bool is_conditional = false) {
    for (const Stmt* stmt : block) Visit(*stmt, is_conditional);
  }
  void Visit(const Expr* expr) {
    if (expr == nullptr) return;
    if (expr->type == Expr::Type::kName) Load(expr->symbol);
    Visit(expr->operands);
    for (const Suffix& suffix : expr->suffixes) {
      for (const Expr* part : suffix.parts) Visit(part);
      Visit(suffix.arguments.positional);
      for (const KeywordArgument& keyword : suffix.arguments.keywords) Visit(keyword.value);
      Visit(suffix.arguments.more_positional);
      Visit(suffix.arguments.more_keywords);
    }
  }
  // Names that are assigned first and that no scope around uses.
  std::vector<uint32_t> Hidden() const {
    std::vector<uint32_t> hidden;
    for (const uint32_t symbol : assigned_first_) {
      bool is_used_around = false;
      for (const Names* names = outer_; names != nullptr; names = names->outer_) {
        is_used_around |= names->used_.contains(symbol);
      }
      if (!is_used_around) hidden.push_back(symbol);
    }
    return hidden;
  }

 private:
  void Load(uint32_t symbol) { used_.insert(symbol); }
  void Store(uint32_t symbol, bool is_conditional) {
    if (used_.insert(symbol).second && !is_conditional) assigned_first_.push_back(symbol);
  }

  // Bodies that are scopes of their own are left out.
  void Visit(const Stmt& stmt, bool is_conditional) {
    Visit(stmt.expr);
    for (const Branch& branch : stmt.branches) {
      Visit(branch.condition);
      Visit(branch.body, true);
    }
    switch (stmt.type) {
      case Stmt::Type::kIf:
        return Visit(stmt.else_body.block, true);
      case Stmt::Type::kSet:
      case Stmt::Type::kSetBlock:
        return Visit(stmt.targets[0], is_conditional);
      case Stmt::Type::kMacro:
        return Store(stmt.symbol, is_conditional);
      case Stmt::Type::kWith:
        return Visit(stmt.values);
      default:
        return;
    }
  }
  void Visit(const Target& target, bool is_conditional) {
    for (const Target& part : target.parts) Visit(part, is_conditional);
    if (target.is_tuple) return;
    target.attribute.empty() ? Store(target.symbol, is_conditional) : Load(target.symbol);
  }
  void Visit(const Exprs& exprs) {
    for (const Expr* expr : exprs) Visit(expr);
  }

  const Names* const outer_;
  absl::flat_hash_set<uint32_t> used_;
  std::vector<uint32_t> assigned_first_;
};

void AddTarget(const Target& target, Names& names) {
  for (const Target& part : target.parts) AddTarget(part, names);
  if (!target.is_tuple) names.AddParameter(target.symbol);
}

void FindInBlock(Block& block, const Names& names);

// Fills `body.hidden`; `names` has the parameters of the scope.
void FindInBody(Body& body, Names names) {
  names.Visit(body.block);
  body.hidden = names.Hidden();
  FindInBlock(body.block, names);
}

void FindInMacro(MacroBody& macro, const Names& outer) {
  Names names(&outer);
  for (const Parameter& parameter : macro.parameters) names.AddParameter(parameter.symbol);
  for (const Parameter& parameter : macro.parameters) names.Visit(parameter.default_value);
  FindInBody(macro.body, names);
}

void FindInBlock(Block& block, const Names& names) {
  for (Stmt* stmt : block) {
    for (Branch& branch : stmt->branches) FindInBlock(branch.body, names);
    switch (stmt->type) {
      case Stmt::Type::kIf:
        FindInBlock(stmt->else_body.block, names);
        break;
      case Stmt::Type::kMacro:
      case Stmt::Type::kCallBlock:
        FindInMacro(stmt->macro, names);
        break;
      case Stmt::Type::kFor: {
        Names inner(&names);
        AddTarget(stmt->targets[0], inner);
        FindInBody(stmt->body, inner);
        FindInBody(stmt->else_body, Names(&names));
        break;
      }
      case Stmt::Type::kWith: {
        Names inner(&names);
        for (const Target& target : stmt->targets) AddTarget(target, inner);
        FindInBody(stmt->body, inner);
        break;
      }
      default:
        FindInBody(stmt->body, Names(&names));
        break;
    }
  }
}

}  // namespace

void FindHiddenNames(Program& program) { FindInBody(program.body, Names(nullptr)); }

}  // namespace orcd::jinja
