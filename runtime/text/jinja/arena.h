// Memory of one rendering, freed at once at its end.
#ifndef ORCD_RUNTIME_TEXT_JINJA_ARENA_H_
#define ORCD_RUNTIME_TEXT_JINJA_ARENA_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace orcd::jinja {

// Hands out memory up to a limit. Objects in it are never destroyed, so values may nest as deep as
// they like. For one thread.
class Arena {
 public:
  explicit Arena(size_t limit_bytes) : limit_(limit_bytes) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Aligned for any scalar. Up to kSmallBytes are always given; more gives null beyond the limit.
  void* Allocate(size_t bytes) {
    bytes = (bytes + kAlign - 1) / kAlign * kAlign;
    if (bytes > block_left_ && !AddBlock(bytes)) return nullptr;
    void* const result = next_;
    next_ += bytes;
    block_left_ -= bytes;
    return result;
  }

  // Always succeeds.
  template <typename T, typename... Args>
  T* New(Args&&... args) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= kAlign &&
                  sizeof(T) <= kSmallBytes);
    return new (Allocate(sizeof(T))) T{std::forward<Args>(args)...};
  }

  // Null beyond the limit.
  template <typename T>
  T* NewArray(size_t count) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= kAlign);
    T* const array = count > limit_ ? Refuse<T>() : static_cast<T*>(Allocate(count * sizeof(T)));
    if (array != nullptr) std::uninitialized_default_construct_n(array, count);
    return array;
  }

  // True once more than the limit was asked for. What was made since may lack parts.
  bool exhausted() const { return exhausted_; }

 private:
  static constexpr size_t kAlign = 16;
  static constexpr size_t kSmallBytes = 1024;
  static constexpr size_t kBlockBytes = size_t{16} << 10;

  template <typename T>
  T* Refuse() {
    exhausted_ = true;
    return nullptr;
  }

  bool AddBlock(size_t bytes) {
    // Blocks grow with what has been taken, so that there are few of them.
    const size_t size = std::max({bytes, kBlockBytes, taken_ / 8});
    if (size > limit_ || taken_ > limit_ - size) {
      exhausted_ = true;
      if (bytes > kSmallBytes) return false;
    }
    blocks_.push_back(std::make_unique_for_overwrite<char[]>(size));
    taken_ += size;
    next_ = blocks_.back().get();
    block_left_ = size;
    return true;
  }

  const size_t limit_;
  size_t taken_ = 0;
  bool exhausted_ = false;
  char* next_ = nullptr;
  size_t block_left_ = 0;
  std::vector<std::unique_ptr<char[]>> blocks_;
};

// A list that grows in an arena. What does not fit into the arena is left out.
template <typename T>
class ArenaVector {
 public:
  explicit ArenaVector(Arena& arena) : arena_(&arena) {}

  void Reserve(size_t capacity) {
    if (capacity <= capacity_) return;
    T* const items = arena_->NewArray<T>(capacity);
    if (items == nullptr) return;
    std::copy_n(items_, size_, items);
    items_ = items;
    capacity_ = capacity;
  }
  void Add(const T& item) {
    if (size_ == capacity_) Reserve(std::max<size_t>(4, capacity_ * 2));
    if (size_ < capacity_) items_[size_++] = item;
  }
  // The memory is used again.
  void Clear() { size_ = 0; }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t i) { return items_[i]; }
  T& back() { return items_[size_ - 1]; }
  std::span<T> items() { return {items_, size_}; }
  std::span<const T> items() const { return {items_, size_}; }

 private:
  Arena* arena_;
  T* items_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_ARENA_H_
