// Keeps the process alive when a page of a mapped file is lost.
#ifndef ORCD_RUNTIME_GGUF_SIGBUS_WATCH_H_
#define ORCD_RUNTIME_GGUF_SIGBUS_WATCH_H_

#include <cstddef>
#include <optional>
#include <span>

namespace orcd {

// Watches one mapping. A read of a page that the file no longer has, or that the disk cannot read,
// raises SIGBUS. The process-wide handler (installed with the first watch) replaces that page and
// all that follow it in the mapping with zeros, marks the watch, and lets the read continue. It
// passes any other SIGBUS to the previous handler.
//
// Owns an entry of a fixed table, not the mapping. Move-only; create and destroy from any thread,
// but destroy before the mapping is removed.
class SigbusWatch {
 public:
  // Number of mappings that can be watched at once.
  static constexpr int kMaxWatches = 1024;

  // `mapping` is a whole mapping, from its first page on. nullopt if kMaxWatches are in use.
  static std::optional<SigbusWatch> Create(std::span<const std::byte> mapping);

  SigbusWatch(SigbusWatch&& other) noexcept;
  SigbusWatch& operator=(SigbusWatch&& other) noexcept;
  ~SigbusWatch();

  // True once a page has been replaced.
  bool lost_pages() const { return first_lost_byte().has_value(); }
  // Offset of the first replaced page from the beginning of the mapping.
  std::optional<size_t> first_lost_byte() const;

 private:
  explicit SigbusWatch(int entry) : entry_(entry) {}
  void Release();

  int entry_;  // -1 if moved from
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_SIGBUS_WATCH_H_
