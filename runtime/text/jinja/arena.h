// Memory of one rendering, freed at once at its end.
#ifndef ORCD_RUNTIME_TEXT_JINJA_ARENA_H_
#define ORCD_RUNTIME_TEXT_JINJA_ARENA_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace orcd::jinja {

// Hands out memory until its limit is spent. Objects in it are never destroyed, so values may nest
// as deep as they like. For one thread.
class Arena {
 public:
  explicit Arena(size_t limit_bytes) : left_(limit_bytes) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Null once the limit is spent. Aligned for any scalar.
  void* Allocate(size_t bytes) {
    bytes = (bytes + kAlign - 1) / kAlign * kAlign;
    if (bytes > block_left_ && !AddBlock(bytes)) return nullptr;
    void* result = next_;
    next_ += bytes;
    block_left_ -= bytes;
    return result;
  }

  // Null once the limit is spent.
  template <typename T>
  T* NewArray(size_t count) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= kAlign);
    if (count > kMost / sizeof(T)) return nullptr;
    T* const array = static_cast<T*>(Allocate(count * sizeof(T)));
    if (array != nullptr) std::uninitialized_default_construct_n(array, count);
    return array;
  }
  template <typename T, typename... Args>
  T* New(Args&&... args) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= kAlign);
    void* const place = Allocate(sizeof(T));
    return place == nullptr ? nullptr : new (place) T(std::forward<Args>(args)...);
  }

 private:
  static constexpr size_t kAlign = 16;
  static constexpr size_t kBlockBytes = size_t{16} << 10;
  static constexpr size_t kMost = size_t{1} << 40;

  bool AddBlock(size_t bytes) {
    // Blocks grow with what has been taken, so their number stays small.
    const size_t size =
        std::min(std::max({bytes, kBlockBytes, taken_ / 4}), std::max(bytes, left_));
    if (bytes > left_ || size > left_) return false;
    blocks_.push_back(std::make_unique_for_overwrite<char[]>(size));
    left_ -= size;
    taken_ += size;
    next_ = blocks_.back().get();
    block_left_ = size;
    return true;
  }

  size_t left_;
  size_t taken_ = 0;
  char* next_ = nullptr;
  size_t block_left_ = 0;
  std::vector<std::unique_ptr<char[]>> blocks_;
};

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_ARENA_H_
