#include "runtime/text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/text/jinja/filters.h"
#include "runtime/text/jinja/lexer.h"
#include "runtime/text/jinja/literals.h"
#include "runtime/text/jinja/predicates.h"
#include "runtime/text/jinja/scopes.h"

namespace orcd::jinja {
namespace {

using Type = Token::Type;

struct OperatorSign {
  std::string_view sign;
  Operator op;
};
constexpr OperatorSign kSums[] = {{"+", Operator::kAdd}, {"-", Operator::kSubtract}};
constexpr OperatorSign kProducts[] = {{"*", Operator::kMultiply},
                                      {"/", Operator::kDivide},
                                      {"//", Operator::kFloorDivide},
                                      {"%", Operator::kModulo}};
constexpr OperatorSign kPowers[] = {{"**", Operator::kPower}};
constexpr OperatorSign kComparisons[] = {
    {"==", Operator::kEqual},       {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
    {"<=", Operator::kLessOrEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterOrEqual}};

using Words = std::initializer_list<std::string_view>;

class Parser {
 public:
  Parser(Program& program, std::vector<Token> tokens)
      : program_(program), tokens_(std::move(tokens)) {}

  absl::Status Run() {
    program_.loop = Symbol("loop");
    program_.caller = Symbol("caller");
    program_.varargs = Symbol("varargs");
    program_.kwargs = Symbol("kwargs");
    ORCD_ASSIGN_OR_RETURN(program_.body.block, ParseBlock({}));
    return absl::OkStatus();
  }

 private:
  using ExprOr = absl::StatusOr<const Expr*>;

  // Counts one level of nesting while it lives.
  class Level {
   public:
    explicit Level(int& depth) : depth_(++depth) {}
    ~Level() { --depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int& depth_;
  };

  // --- Tokens

  const Token& Current() const { return tokens_[pos_]; }
  const Token& Look() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  void Next() {
    if (pos_ + 1 < tokens_.size()) ++pos_;
  }
  static bool IsSign(const Token& token, std::string_view sign) {
    return token.type == Type::kSign && token.text == sign;
  }
  bool AtSign(std::string_view sign) const { return IsSign(Current(), sign); }
  bool AtName(std::string_view name) const {
    return Current().type == Type::kName && Current().text == name;
  }
  bool AtAnyName(Words names) const {
    return Current().type == Type::kName && std::ranges::find(names, Current().text) != names.end();
  }
  bool SkipSign(std::string_view sign) {
    if (!AtSign(sign)) return false;
    Next();
    return true;
  }
  bool SkipName(std::string_view name) {
    if (!AtName(name)) return false;
    Next();
    return true;
  }

  absl::Status Fail(std::string_view message) const {
    return absl::InvalidArgumentError(absl::StrCat(
        "line ", Current().line, ": ", absl::string_view(message.data(), message.size())));
  }
  std::string Found() const {
    switch (Current().type) {
      case Type::kEnd:
        return "the end of the template";
      case Type::kBlockEnd:
        return "the end of a tag";
      case Type::kOutputEnd:
        return "the end of an output";
      default:
        return std::string("'").append(Current().text.substr(0, 40)).append("'");
    }
  }
  absl::Status Expected(std::string_view wanted) const {
    return Fail(std::string(wanted).append(" expected, ").append(Found()).append(" found"));
  }
  absl::Status ExpectSign(std::string_view sign) {
    if (SkipSign(sign)) return absl::OkStatus();
    return Expected(std::string("'").append(sign).append("'"));
  }
  absl::Status Expect(Type type, std::string_view what) {
    if (Current().type != type) return Expected(what);
    Next();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string_view> ExpectName() {
    if (Current().type != Type::kName) return Expected("a name");
    const std::string_view name = Current().text;
    Next();
    return name;
  }
  absl::Status CheckDepth(int more = 0) const {
    if (depth_ + more <= kMaxProgramDepth) return absl::OkStatus();
    return Fail(absl::StrCat("the template nests deeper than ", kMaxProgramDepth, " levels"));
  }

  // --- Nodes

  uint32_t Symbol(std::string_view name) {
    const auto [known, is_new] =
        symbols_.emplace(name, static_cast<uint32_t>(program_.symbols.size()));
    if (is_new) program_.symbols.emplace_back(name);
    return known->second;
  }
  Expr& NewExpr(Expr::Type type) {
    return program_.exprs.emplace_back(Expr{.type = type, .line = Current().line});
  }
  Stmt& NewStmt(Stmt::Type type) {
    return program_.stmts.emplace_back(Stmt{.type = type, .line = Current().line});
  }
  const Expr* Constant(const Value& value) {
    Expr& expr = NewExpr(Expr::Type::kConstant);
    expr.constant = value;
    return &expr;
  }
  const Expr* TextConstant(std::string text) {
    program_.strings.push_back(std::move(text));
    program_.texts.push_back({program_.strings.back(), nullptr, Origin::kTemplate});
    return Constant(Value(&program_.texts.back()));
  }

  // --- Expressions, from the loosest operator to the tightest

  // Like a tuple without parentheses, where a comma follows.
  ExprOr ParseTuple(bool with_conditional = true, std::string_view end_name = {}) {
    return ParseTupleUntil(with_conditional, end_name, /*in_parentheses=*/false);
  }
  bool AtTupleEnd(std::string_view end_name) const {
    return Current().type == Type::kOutputEnd || Current().type == Type::kBlockEnd || AtSign(")") ||
           (!end_name.empty() && AtName(end_name));
  }
  ExprOr ParseTupleUntil(bool with_conditional, std::string_view end_name, bool in_parentheses) {
    Exprs items;
    bool has_comma = false;
    while (!AtTupleEnd(end_name)) {
      ORCD_ASSIGN_OR_RETURN(const Expr* item, ParseExpr(with_conditional));
      items.push_back(item);
      if (!SkipSign(",")) break;
      has_comma = true;
    }
    if (!has_comma && !items.empty()) return items[0];
    if (items.empty() && !in_parentheses) return Expected("an expression");
    Expr& tuple = NewExpr(Expr::Type::kTuple);
    tuple.operands = std::move(items);
    return &tuple;
  }

  ExprOr ParseExpr(bool with_conditional = true) {
    const Level level(depth_);
    ORCD_RETURN_IF_ERROR(CheckDepth());
    ORCD_ASSIGN_OR_RETURN(const Expr* value, ParseOr());
    // Each condition without its `else` is one level of the tree.
    for (int conditions = 0; with_conditional && SkipName("if"); ++conditions) {
      ORCD_RETURN_IF_ERROR(CheckDepth(conditions));
      Expr& conditional = NewExpr(Expr::Type::kConditional);
      ORCD_ASSIGN_OR_RETURN(const Expr* condition, ParseOr());
      const Expr* otherwise = nullptr;
      if (SkipName("else")) {
        ORCD_ASSIGN_OR_RETURN(otherwise, ParseExpr());
      }
      conditional.operands = {value, condition, otherwise};
      value = &conditional;
    }
    return value;
  }

  // One operand, or a chain of operands with `name` between them.
  template <typename Parse>
  ExprOr ParseChain(Expr::Type type, Parse parse, const auto& skip) {
    ORCD_ASSIGN_OR_RETURN(const Expr* first, parse());
    Exprs operands = {first};
    while (skip()) {
      ORCD_ASSIGN_OR_RETURN(const Expr* operand, parse());
      operands.push_back(operand);
    }
    if (operands.size() == 1) return first;
    Expr& chain = NewExpr(type);
    chain.operands = std::move(operands);
    return &chain;
  }
  ExprOr ParseOr() {
    return ParseChain(
        Expr::Type::kOr, [&] { return ParseAnd(); }, [&] { return SkipName("or"); });
  }
  ExprOr ParseAnd() {
    return ParseChain(
        Expr::Type::kAnd, [&] { return ParseNot(); }, [&] { return SkipName("and"); });
  }
  ExprOr ParseConcatenation() {
    return ParseChain(
        Expr::Type::kConcatenate, [&] { return ParseProduct(); }, [&] { return SkipSign("~"); });
  }

  const Expr* Unary(std::vector<Operator> operators, const Expr* operand) {
    if (operators.empty()) return operand;
    Expr& unary = NewExpr(Expr::Type::kUnary);
    unary.operators = std::move(operators);
    unary.operands = {operand};
    return &unary;
  }
  ExprOr ParseNot() {
    std::vector<Operator> nots;
    while (SkipName("not")) nots.push_back(Operator::kNot);
    ORCD_ASSIGN_OR_RETURN(const Expr* operand, ParseComparison());
    return Unary(std::move(nots), operand);
  }

  // A chain of operands with operators between them.
  template <typename Parse, typename Take>
  ExprOr ParseOperators(Expr::Type type, Parse parse, const Take& take) {
    ORCD_ASSIGN_OR_RETURN(const Expr* first, parse());
    Exprs operands = {first};
    std::vector<Operator> operators;
    while (const std::optional<Operator> op = take()) {
      ORCD_ASSIGN_OR_RETURN(const Expr* operand, parse());
      operators.push_back(*op);
      operands.push_back(operand);
    }
    if (operators.empty()) return first;
    Expr& chain = NewExpr(type);
    chain.operands = std::move(operands);
    chain.operators = std::move(operators);
    return &chain;
  }
  std::optional<Operator> TakeOperator(std::span<const OperatorSign> signs) {
    for (const OperatorSign& sign : signs) {
      if (SkipSign(sign.sign)) return sign.op;
    }
    return std::nullopt;
  }
  ExprOr ParseComparison() {
    return ParseOperators(
        Expr::Type::kCompare, [&] { return ParseSum(); },
        [&]() -> std::optional<Operator> {
          if (SkipName("in")) return Operator::kIn;
          if (AtName("not") && Look().type == Type::kName && Look().text == "in") {
            Next();
            Next();
            return Operator::kNotIn;
          }
          return TakeOperator(kComparisons);
        });
  }
  ExprOr ParseSum() {
    return ParseOperators(
        Expr::Type::kArithmetic, [&] { return ParseConcatenation(); },
        [&] { return TakeOperator(kSums); });
  }
  ExprOr ParseProduct() {
    return ParseOperators(
        Expr::Type::kArithmetic, [&] { return ParsePower(); },
        [&] { return TakeOperator(kProducts); });
  }
  ExprOr ParsePower() {
    return ParseOperators(
        Expr::Type::kArithmetic, [&] { return ParseUnary(); },
        [&] { return TakeOperator(kPowers); });
  }

  // Filters and tests apply to what the signs give, all else to the operand.
  ExprOr ParseUnary() {
    std::vector<Operator> signs;
    while (AtSign("-") || AtSign("+")) {
      signs.push_back(AtSign("-") ? Operator::kNegative : Operator::kPositive);
      Next();
    }
    ORCD_ASSIGN_OR_RETURN(const Expr* primary, ParsePrimary());
    ORCD_ASSIGN_OR_RETURN(const Expr* operand, ParseSuffixes(primary, /*with_filters=*/false));
    return ParseSuffixes(Unary(std::move(signs), operand), /*with_filters=*/true);
  }

  ExprOr ParsePrimary() {
    const Token token = Current();
    switch (token.type) {
      case Type::kName:
        Next();
        if (token.text == "true" || token.text == "True") return Constant(Value::Bool(true));
        if (token.text == "false" || token.text == "False") return Constant(Value::Bool(false));
        if (token.text == "none" || token.text == "None") return Constant(Value::None());
        {
          Expr& name = NewExpr(Expr::Type::kName);
          name.symbol = Symbol(token.text);
          return &name;
        }
      case Type::kString:
        return ParseString();
      case Type::kInteger:
      case Type::kFloat: {
        const std::optional<Value> number =
            token.type == Type::kInteger ? IntegerLiteral(token.text) : FloatLiteral(token.text);
        if (!number) return Fail(std::string(token.text).append(" is no number of 64 bits"));
        Next();
        return Constant(*number);
      }
      default:
        break;
    }
    if (SkipSign("(")) {
      ORCD_ASSIGN_OR_RETURN(const Expr* inner, ParseTupleUntil(true, {}, true));
      ORCD_RETURN_IF_ERROR(ExpectSign(")"));
      return inner;
    }
    if (SkipSign("[")) return ParseList();
    if (SkipSign("{")) return ParseDict();
    return Expected("an expression");
  }

  // Strings side by side are one.
  ExprOr ParseString() {
    std::string text;
    while (Current().type == Type::kString) {
      const std::string_view literal = Current().text;
      const std::optional<std::string> part = Unescape(literal.substr(1, literal.size() - 2));
      if (!part) return Fail("a string has an escape that cannot be read");
      text += *part;
      Next();
    }
    return TextConstant(std::move(text));
  }

  ExprOr ParseList() {
    Expr& list = NewExpr(Expr::Type::kList);
    while (!AtSign("]")) {
      ORCD_ASSIGN_OR_RETURN(const Expr* item, ParseExpr());
      list.operands.push_back(item);
      if (!SkipSign(",")) break;
    }
    ORCD_RETURN_IF_ERROR(ExpectSign("]"));
    return &list;
  }

  ExprOr ParseDict() {
    Expr& dict = NewExpr(Expr::Type::kDict);
    while (!AtSign("}")) {
      ORCD_ASSIGN_OR_RETURN(const Expr* key, ParseExpr());
      ORCD_RETURN_IF_ERROR(ExpectSign(":"));
      ORCD_ASSIGN_OR_RETURN(const Expr* value, ParseExpr());
      dict.operands.push_back(key);
      dict.operands.push_back(value);
      if (!SkipSign(",")) break;
    }
    ORCD_RETURN_IF_ERROR(ExpectSign("}"));
    return &dict;
  }

  ExprOr ParseSuffixes(const Expr* operand, bool with_filters) {
    std::vector<Suffix> suffixes;
    while (true) {
      Suffix suffix = {.type = Suffix::Type::kCall, .line = Current().line};
      if (AtSign("(")) {
        ORCD_RETURN_IF_ERROR(ParseArguments(suffix.arguments));
      } else if (!with_filters && SkipSign(".")) {
        ORCD_RETURN_IF_ERROR(ParseAttribute(suffix));
      } else if (!with_filters && SkipSign("[")) {
        ORCD_RETURN_IF_ERROR(ParseItem(suffix));
      } else if (with_filters && SkipSign("|")) {
        ORCD_RETURN_IF_ERROR(ParseFilter(suffix));
      } else if (with_filters && SkipName("is")) {
        ORCD_RETURN_IF_ERROR(ParseTest(suffix));
      } else {
        break;
      }
      suffixes.push_back(std::move(suffix));
    }
    if (suffixes.empty()) return operand;
    Expr& expr = NewExpr(Expr::Type::kSuffixed);
    expr.operands = {operand};
    expr.suffixes = std::move(suffixes);
    return &expr;
  }

  absl::Status ParseAttribute(Suffix& suffix) {
    if (Current().type == Type::kInteger) {
      ORCD_ASSIGN_OR_RETURN(suffix.parts[0], ParsePrimary());
      suffix.type = Suffix::Type::kItem;
      return absl::OkStatus();
    }
    suffix.type = Suffix::Type::kAttribute;
    ORCD_ASSIGN_OR_RETURN(suffix.name, ExpectName());
    return absl::OkStatus();
  }

  absl::Status ParseItem(Suffix& suffix) {
    suffix.type = Suffix::Type::kItem;
    int part = 0;
    // Items between commas are a tuple, and so is nothing.
    Exprs items;
    bool has_comma = false;
    while (!AtSign("]")) {
      if (!has_comma && SkipSign(":")) {
        suffix.type = Suffix::Type::kSlice;
        if (++part > 2) return Fail("a slice has three parts");
        continue;
      }
      const bool is_slice = suffix.type == Suffix::Type::kSlice;
      if (!is_slice && !items.empty() && SkipSign(",")) {
        has_comma = true;
        if (AtSign("]")) break;
      } else if (suffix.parts[part] != nullptr) {
        return Expected("']'");
      }
      ORCD_ASSIGN_OR_RETURN(const Expr* item, ParseExpr());
      items.push_back(item);
      if (!has_comma) suffix.parts[part] = item;
    }
    Next();
    if (suffix.type == Suffix::Type::kSlice || items.size() == 1) return absl::OkStatus();
    Expr& tuple = NewExpr(Expr::Type::kTuple);
    tuple.operands = std::move(items);
    suffix.parts[0] = &tuple;
    return absl::OkStatus();
  }

  absl::StatusOr<std::string_view> ParseDottedName() {
    ORCD_ASSIGN_OR_RETURN(std::string_view name, ExpectName());
    while (SkipSign(".")) {
      ORCD_ASSIGN_OR_RETURN(const std::string_view part, ExpectName());
      program_.strings.push_back(std::string(name).append(".").append(part));
      name = program_.strings.back();
    }
    return name;
  }

  absl::Status ParseFilter(Suffix& suffix) {
    suffix.type = Suffix::Type::kFilter;
    ORCD_ASSIGN_OR_RETURN(suffix.name, ParseDottedName());
    suffix.filter = FindFilter(suffix.name);
    return AtSign("(") ? ParseArguments(suffix.arguments) : absl::OkStatus();
  }

  absl::Status ParseTest(Suffix& suffix) {
    suffix.type = SkipName("not") ? Suffix::Type::kNotTest : Suffix::Type::kTest;
    ORCD_ASSIGN_OR_RETURN(suffix.name, ParseDottedName());
    suffix.predicate = FindPredicate(suffix.name);
    if (AtSign("(")) return ParseArguments(suffix.arguments);
    const bool has_argument = Current().type == Type::kName || Current().type == Type::kString ||
                              Current().type == Type::kInteger || Current().type == Type::kFloat ||
                              AtSign("[") || AtSign("{");
    if (!has_argument || AtAnyName({"else", "or", "and"})) return absl::OkStatus();
    if (AtName("is")) return Fail("tests cannot be chained with 'is'");
    ORCD_ASSIGN_OR_RETURN(const Expr* primary, ParsePrimary());
    ORCD_ASSIGN_OR_RETURN(const Expr* argument, ParseSuffixes(primary, /*with_filters=*/false));
    suffix.arguments.positional = {argument};
    return absl::OkStatus();
  }

  absl::Status ParseArguments(CallArguments& arguments) {
    ORCD_RETURN_IF_ERROR(ExpectSign("("));
    for (bool is_first = true; !AtSign(")"); is_first = false) {
      if (!is_first) {
        ORCD_RETURN_IF_ERROR(ExpectSign(","));
        if (AtSign(")")) break;
      }
      const bool closed = arguments.more_keywords != nullptr;
      if (SkipSign("*")) {
        if (closed || arguments.more_positional != nullptr) return Fail("invalid arguments");
        ORCD_ASSIGN_OR_RETURN(arguments.more_positional, ParseExpr());
      } else if (SkipSign("**")) {
        if (closed) return Fail("invalid arguments");
        ORCD_ASSIGN_OR_RETURN(arguments.more_keywords, ParseExpr());
      } else if (Current().type == Type::kName && IsSign(Look(), "=")) {
        if (closed) return Fail("invalid arguments");
        const std::string_view name = Current().text;
        if (std::ranges::find(arguments.keywords, name, &KeywordArgument::name) !=
            arguments.keywords.end()) {
          return Fail("an argument's name stands twice");
        }
        Next();
        Next();
        ORCD_ASSIGN_OR_RETURN(const Expr* value, ParseExpr());
        arguments.keywords.push_back({name, value});
      } else {
        if (closed || arguments.more_positional != nullptr || !arguments.keywords.empty()) {
          return Fail("a positional argument stands after others");
        }
        ORCD_ASSIGN_OR_RETURN(const Expr* value, ParseExpr());
        arguments.positional.push_back(value);
      }
    }
    return ExpectSign(")");
  }

  // --- Statements

  // Statements up to a tag that begins with one of `ends`; the parser then stands at its name. With
  // no ends, up to the end of the template.
  absl::StatusOr<Block> ParseBlock(Words ends) {
    const Level level(depth_);
    ORCD_RETURN_IF_ERROR(CheckDepth());
    Block block;
    while (Current().type != Type::kEnd) {
      if (Current().type == Type::kData) {
        Stmt& data = NewStmt(Stmt::Type::kData);
        data.data = {Current().text, nullptr, Origin::kTemplate};
        block.push_back(&data);
        Next();
        continue;
      }
      if (Current().type == Type::kOutputBegin) {
        Next();
        Stmt& output = NewStmt(Stmt::Type::kOutput);
        ORCD_ASSIGN_OR_RETURN(output.expr, ParseTuple());
        ORCD_RETURN_IF_ERROR(Expect(Type::kOutputEnd, "'}}'"));
        block.push_back(&output);
        continue;
      }
      Next();
      if (AtAnyName(ends)) return block;
      ORCD_ASSIGN_OR_RETURN(Stmt * stmt, ParseStatement());
      block.push_back(stmt);
      ORCD_RETURN_IF_ERROR(Expect(Type::kBlockEnd, "'%}'"));
    }
    if (ends.size() == 0) return block;
    return Expected(std::string("the tag '").append(*(ends.end() - 1)).append("'"));
  }
  // The same after the end of the opening tag. Skips the name of the closing one if there is just
  // one.
  absl::StatusOr<Block> ParseBody(Words ends) {
    ORCD_RETURN_IF_ERROR(Expect(Type::kBlockEnd, "'%}'"));
    ORCD_ASSIGN_OR_RETURN(Block block, ParseBlock(ends));
    if (ends.size() == 1) Next();
    return block;
  }

  absl::StatusOr<Stmt*> ParseStatement() {
    struct Row {
      std::string_view tag;
      absl::StatusOr<Stmt*> (Parser::*parse)();
    };
    static constexpr Row kRows[] = {
        {"for", &Parser::ParseFor},        {"if", &Parser::ParseIf},
        {"set", &Parser::ParseSet},        {"macro", &Parser::ParseMacro},
        {"call", &Parser::ParseCallBlock}, {"filter", &Parser::ParseFilterBlock},
        {"with", &Parser::ParseWith},      {"generation", &Parser::ParseGeneration},
        {"break", &Parser::ParseBreak},    {"continue", &Parser::ParseContinue},
    };
    if (Current().type != Type::kName) return Expected("the name of a tag");
    for (const Row& row : kRows) {
      if (SkipName(row.tag)) return (this->*row.parse)();
    }
    return Fail(std::string("the tag '").append(Current().text).append("' is unknown"));
  }

  absl::StatusOr<Target> ParseTarget(bool with_attribute, std::string_view end_name) {
    const Level level(depth_);
    ORCD_RETURN_IF_ERROR(CheckDepth());
    Target tuple = {.is_tuple = true};
    bool has_comma = false;
    while (!AtTupleEnd(end_name) && !AtSign("=")) {
      Target part;
      if (SkipSign("(")) {
        ORCD_ASSIGN_OR_RETURN(part, ParseTarget(with_attribute, {}));
        ORCD_RETURN_IF_ERROR(ExpectSign(")"));
      } else {
        ORCD_ASSIGN_OR_RETURN(const std::string_view name, ExpectName());
        static constexpr std::string_view kConstants[] = {"true",  "True", "false",
                                                          "False", "none", "None"};
        if (std::ranges::find(kConstants, name) != std::end(kConstants)) {
          return Fail("a constant cannot be assigned to");
        }
        if (name == "loop" && (loops_ > 0 || end_name == "in")) {
          return Fail("the variable 'loop' of a loop cannot be assigned to");
        }
        part.symbol = Symbol(name);
        if (with_attribute && SkipSign(".")) {
          ORCD_ASSIGN_OR_RETURN(part.attribute, ExpectName());
        }
      }
      tuple.parts.push_back(std::move(part));
      if (!SkipSign(",")) break;
      has_comma = true;
    }
    if (tuple.parts.empty()) return Expected("a name");
    if (!has_comma) return Target(tuple.parts[0]);
    return tuple;
  }

  absl::StatusOr<Stmt*> ParseFor() {
    Stmt& stmt = NewStmt(Stmt::Type::kFor);
    ORCD_ASSIGN_OR_RETURN(Target target, ParseTarget(false, "in"));
    stmt.targets.push_back(std::move(target));
    if (!SkipName("in")) return Expected("'in'");
    ORCD_ASSIGN_OR_RETURN(stmt.expr, ParseTuple(false, "recursive"));
    if (SkipName("if")) {
      ORCD_ASSIGN_OR_RETURN(stmt.condition, ParseExpr());
    }
    stmt.recursive = SkipName("recursive");
    ++loops_;
    absl::StatusOr<Block> body = ParseBody({"else", "endfor"});
    --loops_;
    ORCD_ASSIGN_OR_RETURN(stmt.body.block, std::move(body));
    if (SkipName("else")) {
      ORCD_ASSIGN_OR_RETURN(stmt.else_body.block, ParseBody({"endfor"}));
    } else {
      Next();
    }
    return &stmt;
  }

  absl::StatusOr<Stmt*> ParseIf() {
    Stmt& stmt = NewStmt(Stmt::Type::kIf);
    do {
      Branch branch;
      ORCD_ASSIGN_OR_RETURN(branch.condition, ParseTuple(false));
      ORCD_ASSIGN_OR_RETURN(branch.body, ParseBody({"elif", "else", "endif"}));
      stmt.branches.push_back(std::move(branch));
    } while (SkipName("elif"));
    if (SkipName("else")) {
      ORCD_ASSIGN_OR_RETURN(stmt.else_body.block, ParseBody({"endif"}));
    } else {
      Next();
    }
    return &stmt;
  }

  // Filters on an empty operand.
  absl::StatusOr<const Expr*> ParseFilters(bool begins_with_name) {
    Expr& filters = NewExpr(Expr::Type::kSuffixed);
    while (begins_with_name || SkipSign("|")) {
      begins_with_name = false;
      Suffix suffix = {.type = Suffix::Type::kFilter, .line = Current().line};
      ORCD_RETURN_IF_ERROR(ParseFilter(suffix));
      filters.suffixes.push_back(std::move(suffix));
    }
    return &filters;
  }

  absl::StatusOr<Stmt*> ParseSet() {
    Stmt& stmt = NewStmt(Stmt::Type::kSet);
    ORCD_ASSIGN_OR_RETURN(Target target, ParseTarget(true, {}));
    stmt.targets.push_back(std::move(target));
    if (SkipSign("=")) {
      ORCD_ASSIGN_OR_RETURN(stmt.expr, ParseTuple());
      return &stmt;
    }
    stmt.type = Stmt::Type::kSetBlock;
    ORCD_ASSIGN_OR_RETURN(stmt.expr, ParseFilters(false));
    ORCD_ASSIGN_OR_RETURN(stmt.body.block, ParseBody({"endset"}));
    return &stmt;
  }

  absl::Status ParseParameters(MacroBody& macro) {
    ORCD_RETURN_IF_ERROR(ExpectSign("("));
    while (!AtSign(")")) {
      if (!macro.parameters.empty()) {
        ORCD_RETURN_IF_ERROR(ExpectSign(","));
      }
      ORCD_ASSIGN_OR_RETURN(const std::string_view name, ExpectName());
      Parameter parameter = {Symbol(name), nullptr};
      if (std::ranges::find(macro.parameters, parameter.symbol, &Parameter::symbol) !=
          macro.parameters.end()) {
        return Fail("a parameter's name stands twice");
      }
      if (SkipSign("=")) {
        ORCD_ASSIGN_OR_RETURN(parameter.default_value, ParseExpr());
      } else if (!macro.parameters.empty() && macro.parameters.back().default_value != nullptr) {
        return Fail("a parameter without a default follows one with a default");
      }
      macro.parameters.push_back(parameter);
    }
    return ExpectSign(")");
  }

  absl::Status ParseMacroBody(MacroBody& macro, std::string_view end) {
    const size_t begin = pos_;
    const int loops = std::exchange(loops_, 0);
    absl::StatusOr<Block> body = ParseBody({end});
    loops_ = loops;
    ORCD_ASSIGN_OR_RETURN(macro.body.block, std::move(body));
    for (size_t i = begin; i < pos_; ++i) {
      if (tokens_[i].type != Type::kName) continue;
      macro.uses_varargs |= tokens_[i].text == "varargs";
      macro.uses_kwargs |= tokens_[i].text == "kwargs";
      macro.uses_caller |= tokens_[i].text == "caller";
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Stmt*> ParseMacro() {
    Stmt& stmt = NewStmt(Stmt::Type::kMacro);
    ORCD_ASSIGN_OR_RETURN(stmt.macro.name, ExpectName());
    stmt.symbol = Symbol(stmt.macro.name);
    ORCD_RETURN_IF_ERROR(ParseParameters(stmt.macro));
    ORCD_RETURN_IF_ERROR(ParseMacroBody(stmt.macro, "endmacro"));
    return &stmt;
  }

  absl::StatusOr<Stmt*> ParseCallBlock() {
    Stmt& stmt = NewStmt(Stmt::Type::kCallBlock);
    stmt.macro.name = "caller";
    if (AtSign("(")) {
      ORCD_RETURN_IF_ERROR(ParseParameters(stmt.macro));
    }
    ORCD_ASSIGN_OR_RETURN(stmt.expr, ParseExpr());
    if (stmt.expr->type != Expr::Type::kSuffixed ||
        stmt.expr->suffixes.back().type != Suffix::Type::kCall) {
      return Fail("the tag 'call' needs a call");
    }
    ORCD_RETURN_IF_ERROR(ParseMacroBody(stmt.macro, "endcall"));
    return &stmt;
  }

  absl::StatusOr<Stmt*> ParseFilterBlock() {
    Stmt& stmt = NewStmt(Stmt::Type::kFilterBlock);
    ORCD_ASSIGN_OR_RETURN(stmt.expr, ParseFilters(true));
    ORCD_ASSIGN_OR_RETURN(stmt.body.block, ParseBody({"endfilter"}));
    return &stmt;
  }

  absl::StatusOr<Stmt*> ParseWith() {
    Stmt& stmt = NewStmt(Stmt::Type::kWith);
    while (Current().type != Type::kBlockEnd) {
      if (!stmt.targets.empty()) {
        ORCD_RETURN_IF_ERROR(ExpectSign(","));
      }
      ORCD_ASSIGN_OR_RETURN(const std::string_view name, ExpectName());
      stmt.targets.push_back({.symbol = Symbol(name)});
      ORCD_RETURN_IF_ERROR(ExpectSign("="));
      ORCD_ASSIGN_OR_RETURN(const Expr* value, ParseExpr());
      stmt.values.push_back(value);
    }
    ORCD_ASSIGN_OR_RETURN(stmt.body.block, ParseBody({"endwith"}));
    return &stmt;
  }

  // Marks what a model is trained on; here it is a scope.
  absl::StatusOr<Stmt*> ParseGeneration() {
    Stmt& stmt = NewStmt(Stmt::Type::kScope);
    ORCD_ASSIGN_OR_RETURN(stmt.body.block, ParseBody({"endgeneration"}));
    return &stmt;
  }

  absl::StatusOr<Stmt*> ParseJump(Stmt::Type type) {
    if (loops_ == 0) return Fail("'break' and 'continue' belong into a loop");
    return &NewStmt(type);
  }
  absl::StatusOr<Stmt*> ParseBreak() { return ParseJump(Stmt::Type::kBreak); }
  absl::StatusOr<Stmt*> ParseContinue() { return ParseJump(Stmt::Type::kContinue); }

  Program& program_;
  const std::vector<Token> tokens_;
  size_t pos_ = 0;
  int depth_ = 0;
  // Loops around the current statement, within its macro.
  int loops_ = 0;
  absl::flat_hash_map<std::string, uint32_t> symbols_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Program>> ParseProgram(std::string source) {
  auto program = std::make_unique<Program>();
  program->source = std::move(source);
  ORCD_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(program->source));
  ORCD_RETURN_IF_ERROR(Parser(*program, std::move(tokens)).Run());
  FindHiddenNames(*program);
  return program;
}

}  // namespace orcd::jinja
