#include "runtime/text/bpe.h"

#include <algorithm>

namespace orcd {
namespace {

// Up to this length, searching all pairs for each merge is faster than keeping them in a heap.
constexpr size_t kShortWord = 48;

constexpr int32_t kMerged = -1;
constexpr uint32_t kNoPart = std::numeric_limits<uint32_t>::max();

}  // namespace

bool Bpe::AddMerge(int32_t left, int32_t right, int32_t merged) {
  const auto rank = static_cast<int32_t>(merges_.size());
  return merges_.emplace(Key(left, right), Merge{rank, merged}).second;
}

void Bpe::Append(std::string_view word, Workspace& workspace, std::vector<int32_t>& ids) const {
  if (word.size() <= kShortWord) {
    AppendShort(word, ids);
  } else {
    AppendLong(word, workspace, ids);
  }
}

void Bpe::AppendShort(std::string_view word, std::vector<int32_t>& ids) const {
  // pairs[i] is the merge of parts[i] and parts[i + 1]; the last part has no pair.
  std::array<int32_t, kShortWord> parts;
  std::array<Merge, kShortWord> pairs;
  size_t size = word.size();
  for (size_t i = 0; i < size; ++i) parts[i] = byte_ids_[static_cast<uint8_t>(word[i])];
  for (size_t i = 0; i + 1 < size; ++i) pairs[i] = Find(parts[i], parts[i + 1]);

  while (size > 1) {
    const auto best =
        std::min_element(pairs.begin(), pairs.begin() + (size - 1),
                         [](const Merge& a, const Merge& b) { return a.rank < b.rank; });
    if (best->rank == kNoRank) break;
    const size_t i = best - pairs.begin();
    parts[i] = best->id;
    --size;
    std::copy(parts.begin() + i + 2, parts.begin() + size + 1, parts.begin() + i + 1);
    if (i + 1 < size) {
      std::copy(pairs.begin() + i + 2, pairs.begin() + size, pairs.begin() + i + 1);
      pairs[i] = Find(parts[i], parts[i + 1]);
    }
    if (i > 0) pairs[i - 1] = Find(parts[i - 1], parts[i]);
  }
  ids.insert(ids.end(), parts.begin(), parts.begin() + size);
}

void Bpe::PushCandidate(uint32_t left, Workspace& workspace) const {
  const Workspace::Part& part = workspace.parts_[left];
  if (part.next == kNoPart) return;
  const int32_t right_id = workspace.parts_[part.next].id;
  const Merge merge = Find(part.id, right_id);
  if (merge.rank != kNoRank) workspace.heap_.push_back({merge.rank, left, part.id, right_id});
}

void Bpe::AppendLong(std::string_view word, Workspace& workspace, std::vector<int32_t>& ids) const {
  auto& parts = workspace.parts_;
  auto& heap = workspace.heap_;
  const auto size = static_cast<uint32_t>(word.size());
  parts.resize(size);
  heap.clear();
  for (uint32_t i = 0; i < size; ++i) {
    parts[i] = {byte_ids_[static_cast<uint8_t>(word[i])], i == 0 ? kNoPart : i - 1,
                i + 1 == size ? kNoPart : i + 1};
  }
  for (uint32_t i = 0; i < size; ++i) PushCandidate(i, workspace);

  // A part keeps the index of its first byte, so the order of indices is the order in the word.
  const auto later = [](const Workspace::Candidate& a, const Workspace::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  };
  const auto push = [&](uint32_t left) {
    const size_t before = heap.size();
    PushCandidate(left, workspace);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), later);
  };
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Workspace::Candidate candidate = heap.back();
    heap.pop_back();
    Workspace::Part& left = parts[candidate.left];
    if (left.id != candidate.left_id || left.next == kNoPart ||
        parts[left.next].id != candidate.right_id) {
      continue;
    }
    Workspace::Part& right = parts[left.next];
    left.id = Find(candidate.left_id, candidate.right_id).id;
    left.next = right.next;
    right.id = kMerged;
    if (left.next != kNoPart) parts[left.next].previous = candidate.left;
    push(candidate.left);
    if (left.previous != kNoPart) push(left.previous);
  }
  for (uint32_t i = 0; i != kNoPart; i = parts[i].next) ids.push_back(parts[i].id);
}

}  // namespace orcd
