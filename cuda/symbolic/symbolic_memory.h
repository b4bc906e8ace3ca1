// Memory of which only is known what each kernel would have left where: the expression that it
// computed, not its value. Nothing lies at the addresses.
#ifndef ORCD_CUDA_SYMBOLIC_SYMBOLIC_MEMORY_H_
#define ORCD_CUDA_SYMBOLIC_SYMBOLIC_MEMORY_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace orcd::cuda {

// An expression; equal ones are the same number.
using Symbol = int;

// Expressions by what they are made of. One thread.
class Symbols {
 public:
  // `operation` of these.
  Symbol Make(const std::string& operation, const std::vector<Symbol>& of = {});
  // Down to `depth` operations.
  std::string Describe(Symbol symbol, int depth = 4) const;

 private:
  std::vector<std::pair<std::string, std::vector<Symbol>>> made_;
  absl::flat_hash_map<std::string, Symbol> by_text_;
};

// What a piece of memory holds: a part of an expression's value, whose meaning is its writer's.
struct Content {
  Symbol symbol = -1;
  int64_t part = 0;

  bool operator==(const Content&) const = default;
};

class SymbolicMemory {
 public:
  struct Piece {
    uintptr_t end;
    Content content;
  };

  // What was there is there no more, in part or all of it.
  void Write(uintptr_t begin, int64_t bytes, const Content& content);
  // The piece that was written at `begin`, of which nothing has been written since; null where
  // there is none.
  const Piece* Find(uintptr_t begin) const;

 private:
  std::map<uintptr_t, Piece> pieces_;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_SYMBOLIC_SYMBOLIC_MEMORY_H_
