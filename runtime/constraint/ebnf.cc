#include "runtime/constraint/ebnf.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/constraint/conditions.h"
#include "runtime/constraint/ebnf_reader.h"
#include "runtime/constraint/rule_error.h"

namespace orcd {
namespace {

using Kind = EbnfNode::Kind;

// Lark's parser accepts 30 groups in each other.
constexpr int kMaxGroups = 8;

void CollectRules(const EbnfNode& node, std::vector<int>& rules) {
  if (node.kind == Kind::kRule) rules.push_back(node.rule);
  for (const EbnfNode& part : node.parts) CollectRules(part, rules);
}

// The condition that some text ends `node`. Those of rules are their indexes.
int AddEnd(const EbnfNode& node, Conditions& conditions) {
  if (node.kind == Kind::kRule) return node.rule;
  if (node.kind == Kind::kChoice) {
    const int any = conditions.AddAny();
    for (const EbnfNode& part : node.parts) {
      conditions.OfferToAny(any, AddEnd(part, conditions));
    }
    return any;
  }
  const int all = conditions.AddAll();
  if (node.kind == Kind::kRepeat && node.min == 0) return all;
  for (const EbnfNode& part : node.parts) {
    conditions.RequireForAll(all, AddEnd(part, conditions));
  }
  return all;
}

// Removes the alternatives and repetitions that no text ends; false if nothing is left of the node.
bool DropEndless(const std::vector<bool>& ends, EbnfNode& node) {
  switch (node.kind) {
    case Kind::kCharacters:
      return true;
    case Kind::kRule:
      return ends[node.rule];
    case Kind::kChoice: {
      std::vector<EbnfNode> left;
      for (EbnfNode& part : node.parts) {
        if (DropEndless(ends, part)) left.push_back(std::move(part));
      }
      node.parts = std::move(left);
      return !node.parts.empty();
    }
    case Kind::kRepeat:
      if (DropEndless(ends, node.parts.front())) return true;
      if (node.min > 0) return false;
      node = EbnfNode{};
      return true;
    case Kind::kSequence:
      return std::ranges::all_of(node.parts,
                                 [&](EbnfNode& part) { return DropEndless(ends, part); });
  }
  return true;
}

// For each rule, if there is a text that it matches. Nothing leads any more to one that has none.
std::vector<bool> DropEndlessRules(EbnfGrammar& grammar) {
  Conditions conditions;
  for (size_t i = 0; i < grammar.rules.size(); ++i) conditions.AddAll();
  for (size_t i = 0; i < grammar.rules.size(); ++i) {
    conditions.RequireForAll(static_cast<int>(i), AddEnd(grammar.rules[i].body, conditions));
  }
  conditions.Solve();
  std::vector<bool> ends(grammar.rules.size());
  for (size_t i = 0; i < ends.size(); ++i) ends[i] = conditions.Holds(static_cast<int>(i));
  for (EbnfRule& rule : grammar.rules) {
    if (!DropEndless(ends, rule.body)) rule.body = EbnfNode{};
  }
  return ends;
}

// For each rule, if it leads to no recursion: all its rules were found to be such before it.
std::vector<bool> FindFlatRules(const EbnfGrammar& grammar) {
  const size_t count = grammar.rules.size();
  std::vector<std::vector<int>> users(count);
  std::vector<size_t> open(count);
  std::vector<int> flat;
  for (size_t i = 0; i < count; ++i) {
    std::vector<int> used;
    CollectRules(grammar.rules[i].body, used);
    open[i] = used.size();
    for (const int rule : used) users[rule].push_back(static_cast<int>(i));
    if (used.empty()) flat.push_back(static_cast<int>(i));
  }
  std::vector<bool> is_flat(count, false);
  for (size_t i = 0; i < flat.size(); ++i) {
    is_flat[flat[i]] = true;
    for (const int user : users[flat[i]]) {
      if (--open[user] == 0) flat.push_back(user);
    }
  }
  return is_flat;
}

class Writer {
 public:
  explicit Writer(const EbnfGrammar& grammar)
      : grammar_(grammar), is_flat_(FindFlatRules(grammar)) {}

  // Writes the rules of `wanted`.
  LarkPart Write(const std::vector<bool>& wanted) {
    for (size_t i = 0; i < grammar_.rules.size(); ++i) {
      if (!wanted[i]) continue;
      const EbnfNode& body = grammar_.rules[i].body;
      const std::string text = is_flat_[i] ? Terminal(body, 0) : Rule(body, 0);
      Define(RuleName(static_cast<int>(i)), text);
    }
    return {std::move(definitions_), RuleName(grammar_.root)};
  }

  int definition_count() const { return definition_count_; }

 private:
  std::string RuleName(int rule) const {
    return (is_flat_[rule] ? "G" : "g") + std::to_string(rule);
  }

  void Define(const std::string& name, const std::string& text) {
    definitions_.append(name).append(": ").append(text).append("\n");
    ++definition_count_;
  }
  std::string DefineNew(std::string_view kind, const std::string& text) {
    std::string name = std::string(kind).append("_").append(std::to_string(definition_count_));
    Define(name, text);
    return name;
  }

  bool IsFlat(const EbnfNode& node) const {
    if (node.kind == Kind::kRule) return is_flat_[node.rule];
    for (const EbnfNode& part : node.parts) {
      if (!IsFlat(part)) return false;
    }
    return true;
  }

  // The text of a node without rules that recur, in a terminal's definition.
  std::string Terminal(const EbnfNode& node, int groups) {
    switch (node.kind) {
      case Kind::kCharacters:
        return node.text;
      case Kind::kRule:
        return RuleName(node.rule);
      case Kind::kSequence: {
        std::string text;
        for (const EbnfNode& part : node.parts) {
          if (!text.empty()) text += ' ';
          text += TerminalAtom(part, groups);
        }
        return text.empty() ? "\"\"" : text;
      }
      case Kind::kChoice: {
        std::string text;
        for (const EbnfNode& part : node.parts) {
          if (!text.empty()) text += " | ";
          text += Terminal(part, groups);
        }
        return text;
      }
      case Kind::kRepeat:
        return Repeated(TerminalAtom(node.parts.front(), groups), node);
    }
    return {};
  }

  static bool IsAtom(const EbnfNode& node) {
    return node.kind == Kind::kCharacters || node.kind == Kind::kRule;
  }
  std::string TerminalAtom(const EbnfNode& node, int groups) {
    if (IsAtom(node)) return Terminal(node, groups);
    if (groups == kMaxGroups) return DefineNew("G", Terminal(node, 0));
    return "(" + Terminal(node, groups + 1) + ")";
  }

  // The text of any node, in a rule's definition.
  std::string Rule(const EbnfNode& node, int groups) {
    if (IsFlat(node)) {
      const bool is_empty = node.kind == Kind::kSequence && node.parts.empty();
      std::string text = Terminal(node, 0);
      return is_empty || IsAtom(node) ? text : DefineNew("G", text);
    }
    switch (node.kind) {
      case Kind::kSequence: {
        std::string text;
        for (size_t i = 0; i < node.parts.size();) {
          if (!text.empty()) text += ' ';
          size_t end = i + 1;
          if (IsFlat(node.parts[i])) {
            while (end < node.parts.size() && IsFlat(node.parts[end])) ++end;
          }
          if (end - i == 1) {
            text += RuleAtom(node.parts[i], groups);
          } else {
            text += DefineNew("G", TerminalRun({&node.parts[i], end - i}));
          }
          i = end;
        }
        return text;
      }
      case Kind::kChoice: {
        std::string text;
        for (const EbnfNode& part : node.parts) {
          if (!text.empty()) text += " | ";
          text += Rule(part, groups);
        }
        return text;
      }
      case Kind::kRepeat:
        return Repeated(RuleAtom(node.parts.front(), groups), node);
      case Kind::kCharacters:
      case Kind::kRule:
        break;
    }
    return RuleName(node.rule);
  }

  std::string TerminalRun(std::span<const EbnfNode> parts) {
    std::string text;
    for (const EbnfNode& part : parts) {
      if (!text.empty()) text += ' ';
      text += TerminalAtom(part, 0);
    }
    return text;
  }

  std::string RuleAtom(const EbnfNode& node, int groups) {
    if (IsFlat(node) || IsAtom(node)) return Rule(node, groups);
    if (groups == kMaxGroups) return DefineNew("g", Rule(node, 0));
    return "(" + Rule(node, groups + 1) + ")";
  }

  static std::string Repeated(std::string atom, const EbnfNode& repeat) {
    if (repeat.max == 0) return "\"\"";
    if (repeat.max == EbnfNode::kNoMax && repeat.min == 0) return atom += '*';
    if (repeat.max == EbnfNode::kNoMax && repeat.min == 1) return atom += '+';
    if (repeat.max == 1) return repeat.min == 0 ? atom += '?' : atom;
    atom.append("{").append(std::to_string(repeat.min)).append(",");
    if (repeat.max != EbnfNode::kNoMax) atom += std::to_string(repeat.max);
    return atom += '}';
  }

  const EbnfGrammar& grammar_;
  const std::vector<bool> is_flat_;
  std::string definitions_;
  int definition_count_ = 0;
};

}  // namespace

absl::StatusOr<LarkPart> EbnfToLark(std::string_view grammar, const std::string& field) {
  ORCD_ASSIGN_OR_RETURN(EbnfGrammar tree, ReadEbnf(grammar, field));
  const std::vector<bool> ends = DropEndlessRules(tree);
  if (!ends[tree.root]) {
    return UnsatisfiableRule(field, "no text matches the rule `root`: it never ends");
  }
  Writer writer(tree);
  LarkPart part = writer.Write(ends);
  if (writer.definition_count() > kMaxDefinitions) {
    return RuleTooLarge(field, "its rules and their parts are more than " +
                                   std::to_string(kMaxDefinitions) + " definitions");
  }
  return part;
}

}  // namespace orcd
