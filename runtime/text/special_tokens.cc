#include "runtime/text/special_tokens.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

namespace orcd {
namespace {

// isspace() in the C locale.
bool IsAsciiSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

}  // namespace

SpecialTokens::SpecialTokens(std::span<const SpecialToken> tokens) : nodes_(1) {
  struct Place {
    int32_t parent;
    uint32_t depth;
    char byte;
  };
  std::vector<Place> places(1);
  for (const SpecialToken& token : tokens) {
    int32_t node = kRoot;
    for (size_t i = 0; i < token.text.size(); ++i) {
      const auto [edge, is_new] =
          edges_.emplace(Edge(node, token.text[i]), static_cast<int32_t>(nodes_.size()));
      if (is_new) {
        places.push_back({node, static_cast<uint32_t>(i + 1), token.text[i]});
        nodes_.emplace_back();
        if (node == kRoot) first_[static_cast<uint8_t>(token.text[i])] = edge->second;
      }
      node = edge->second;
    }
    nodes_[node].id = token.id;
    nodes_[node].length = static_cast<uint32_t>(token.text.size());
    nodes_[node].is_control = token.is_control;
    nodes_[node].takes_space_after = token.takes_space_after;
  }

  // A node's fallback is shorter than the node, so short nodes come first.
  std::vector<int32_t> order(nodes_.size() - 1);
  std::iota(order.begin(), order.end(), kRoot + 1);
  std::ranges::stable_sort(order, {}, [&](int32_t node) { return places[node].depth; });
  for (const int32_t node : order) {
    const Place& place = places[node];
    if (place.parent != kRoot) {
      nodes_[node].fallback = Step(nodes_[place.parent].fallback, place.byte);
    }
    nodes_[node].token = nodes_[node].id != kNone ? node : nodes_[nodes_[node].fallback].token;
  }
}

int32_t SpecialTokens::Step(int32_t node, char byte) const {
  for (; node != kRoot; node = nodes_[node].fallback) {
    if (const auto edge = edges_.find(Edge(node, byte)); edge != edges_.end()) return edge->second;
  }
  return first_[static_cast<uint8_t>(byte)];
}

int32_t SpecialTokens::LongestAllowed(int32_t token, size_t end, const TextSpan& span) const {
  while (token != kNone && nodes_[token].is_control &&
         (!span.allows_control || end - nodes_[token].length < span.begin)) {
    token = nodes_[nodes_[token].fallback].token;
  }
  return token;
}

std::vector<SpecialTokenMatch> SpecialTokens::FindAll(std::string_view text,
                                                      std::span<const TextSpan> spans) const {
  // For each place where tokens end, the longest of them that has not been found to overlap a token
  // that wins.
  std::map<uint32_t, std::vector<Candidate>, std::greater<>> by_length;
  const auto add = [&](int32_t token, size_t end, size_t span) {
    token = LongestAllowed(token, end, spans[span]);
    if (token == kNone) return;
    by_length[nodes_[token].length].push_back(
        {static_cast<uint32_t>(end), static_cast<uint32_t>(span), token});
  };
  int32_t node = kRoot;
  for (size_t i = 0; i < spans.size(); ++i) {
    if (i > 0 && spans[i - 1].end != spans[i].begin) node = kRoot;
    for (size_t pos = spans[i].begin; pos < spans[i].end; ++pos) {
      node = Step(node, text[pos]);
      if (node != kRoot) add(nodes_[node].token, pos + 1, i);
    }
  }
  std::vector<SpecialTokenMatch> found;
  std::vector<bool> taken(by_length.empty() ? 0 : text.size());
  while (!by_length.empty()) {
    const uint32_t length = by_length.begin()->first;
    std::vector<Candidate> candidates = std::move(by_length.extract(by_length.begin()).mapped());
    std::ranges::sort(candidates, {}, [&](const Candidate& candidate) {
      return std::tuple(nodes_[candidate.node].id, candidate.end);
    });
    // Every token taken so far is at least as long, so one that overlaps a candidate covers its
    // first or its last byte. White space that was taken with a token adjoins the token.
    std::erase_if(candidates, [&](const Candidate& candidate) {
      const size_t begin = candidate.end - length;
      if (taken[candidate.end - 1]) return true;
      if (taken[begin]) return false;
      const Node& token = nodes_[candidate.node];
      size_t end = candidate.end;
      if (token.takes_space_after) {
        while (end < text.size() && !taken[end] && IsAsciiSpace(text[end])) ++end;
      }
      std::fill(taken.begin() + begin, taken.begin() + end, true);
      found.push_back({begin, end, token.id});
      return true;
    });
    // A shorter token may end where these do.
    for (const Candidate& candidate : candidates) {
      if (taken[candidate.end - 1]) continue;
      add(nodes_[nodes_[candidate.node].fallback].token, candidate.end, candidate.span);
    }
  }
  std::ranges::sort(found, {}, &SpecialTokenMatch::begin);
  return found;
}

int32_t SpecialTokens::FindId(std::string_view text) const {
  int32_t node = kRoot;
  for (const char byte : text) {
    const auto edge = edges_.find(Edge(node, byte));
    if (edge == edges_.end()) return kNone;
    node = edge->second;
  }
  return nodes_[node].id;
}

}  // namespace orcd
