// Keeps the process alive where a page of a mapped file is gone.
#ifndef ORCD_RUNTIME_GGUF_SIGBUS_WATCH_H_
#define ORCD_RUNTIME_GGUF_SIGBUS_WATCH_H_

#include <cstddef>
#include <optional>
#include <span>

namespace orcd {

// Watches one mapping. A read of a page that the file no longer has, or that the disk cannot give,
// raises SIGBUS; the process-wide handler (installed with the first watch) puts zeros in place of
// that page and all that follow it in the mapping, marks the watch, and lets the read go on. Any
// other SIGBUS goes to the handler that was there before.
//
// Owns an entry of a fixed table, not the mapping. Move-only; create and destroy from any thread,
// but destroy before the mapping goes.
class SigbusWatch {
 public:
  // Mappings that can be watched at once.
  static constexpr int kMaxWatches = 1024;

  // `mapping` is a whole mapping, from its first page on. Nothing where kMaxWatches are in use.
  static std::optional<SigbusWatch> Create(std::span<const std::byte> mapping);

  SigbusWatch(SigbusWatch&& other) noexcept;
  SigbusWatch& operator=(SigbusWatch&& other) noexcept;
  ~SigbusWatch();

  // True once a page was replaced.
  bool lost_pages() const { return first_lost_byte().has_value(); }
  // Where the first page that was replaced begins, from the mapping's begin.
  std::optional<size_t> first_lost_byte() const;

 private:
  explicit SigbusWatch(int entry) : entry_(entry) {}
  void Release();

  int entry_;  // -1 where moved from
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_SIGBUS_WATCH_H_
