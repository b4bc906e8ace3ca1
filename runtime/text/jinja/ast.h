// A template's program: statements and expressions, as the parser makes them.
#ifndef ORCD_RUNTIME_TEXT_JINJA_AST_H_
#define ORCD_RUNTIME_TEXT_JINJA_AST_H_

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/jinja/arena.h"
#include "runtime/text/jinja/value.h"

namespace orcd::jinja {

struct FilterRow;
struct PredicateRow;

struct Expr;
using Exprs = std::vector<const Expr*>;

struct KeywordArgument {
  std::string_view name;
  const Expr* value;
};

// The arguments of a call, a filter or a test.
struct CallArguments {
  Exprs positional;
  std::vector<KeywordArgument> keywords;
  // `*list` and `**dict`; null if there is none.
  const Expr* more_positional = nullptr;
  const Expr* more_keywords = nullptr;
};

enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessOrEqual,
  kGreater,
  kGreaterOrEqual,
  kIn,
  kNotIn,
  kNot,
  kNegative,
  kPositive,
};

// An operation on the value before it: `.name`, `[item]`, `[a:b:c]`, a call, a filter, a test. A
// chain of them is a list, so its length needs no depth.
struct Suffix {
  enum class Type : uint8_t { kAttribute, kItem, kSlice, kCall, kFilter, kTest, kNotTest };
  Type type;
  int line = 0;
  // An attribute, a filter or a test.
  std::string_view name = {};
  // The index, or the three parts of a slice, null where left out.
  const Expr* parts[3] = {};
  CallArguments arguments = {};
  // Null if no filter or test has this name.
  const FilterRow* filter = nullptr;
  const PredicateRow* predicate = nullptr;
};

struct Expr {
  enum class Type : uint8_t {
    kConstant,
    kName,
    kList,
    kTuple,
    // Keys and values by turns.
    kDict,
    // Operators before an operand, outermost first.
    kUnary,
    // operands[0] ops[0] operands[1] ops[1] …, from left to right.
    kArithmetic,
    kCompare,
    kConcatenate,
    kAnd,
    kOr,
    // `a if b else c`: a, b and c, of which c may be null.
    kConditional,
    // operands[0] and suffixes.
    kSuffixed,
  };
  Type type;
  int line = 0;
  Value constant = {};
  uint32_t symbol = 0;
  Exprs operands = {};
  std::vector<Operator> operators = {};
  std::vector<Suffix> suffixes = {};
};

struct Target;
using Targets = std::vector<Target>;

// The left side of an assignment: a name, `namespace.attribute`, or a tuple of targets.
struct Target {
  uint32_t symbol = 0;
  std::string_view attribute = {};
  bool is_tuple = false;
  Targets parts = {};
};

struct Stmt;
using Block = std::vector<Stmt*>;

// A block with a scope of its own.
struct Body {
  Block block = {};
  // Names that are undefined until the block assigns them; see scopes.h.
  std::vector<uint32_t> hidden = {};
};

struct Parameter {
  uint32_t symbol;
  // Null if there is none.
  const Expr* default_value;
};

// A macro, or the body of a call block.
struct MacroBody {
  std::string_view name = {};
  std::vector<Parameter> parameters = {};
  Body body = {};
  // True if the body uses these names.
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool uses_caller = false;
};

struct Branch {
  const Expr* condition;
  Block body;
};

struct Stmt {
  enum class Type : uint8_t {
    kData,
    kOutput,
    kFor,
    kIf,
    kSet,
    kSetBlock,
    kMacro,
    kCallBlock,
    kFilterBlock,
    kWith,
    kScope,
    kBreak,
    kContinue,
  };
  Type type;
  int line = 0;
  // kData.
  Text data = {};
  // kOutput, kFor (iterable), kSet, kCallBlock (call), kSetBlock and kFilterBlock (filters on an
  // empty operand, or null).
  const Expr* expr = nullptr;
  // kFor, kSet, kSetBlock, kWith.
  Targets targets = {};
  // kWith.
  Exprs values = {};
  // kFor: the condition after `if`, or null.
  const Expr* condition = nullptr;
  bool recursive = false;
  Body body = {};
  // kFor; kIf, where it has no scope.
  Body else_body = {};
  // kIf.
  std::vector<Branch> branches = {};
  // kMacro, kCallBlock.
  uint32_t symbol = 0;
  MacroBody macro = {};
};

// Owns every part. Immutable once parsed.
struct Program {
  // Constants' texts view it.
  std::string source;
  Body body;
  // Indexed by symbol.
  std::vector<std::string> symbols;
  // Symbols of the names that the engine sets.
  uint32_t loop = 0;
  uint32_t caller = 0;
  uint32_t varargs = 0;
  uint32_t kwargs = 0;

  std::deque<Expr> exprs;
  std::deque<Stmt> stmts;
  std::deque<std::string> strings;
  std::deque<Text> texts;
};

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_AST_H_
