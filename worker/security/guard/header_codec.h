// Header blocks: HPACK by libnghttp2, and the literal form that leaves the dynamic table alone.
#ifndef ORCD_WORKER_SECURITY_GUARD_HEADER_CODEC_H_
#define ORCD_WORKER_SECURITY_GUARD_HEADER_CODEC_H_

#include <nghttp2/nghttp2.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace orcd::guard {

// The fields of one header block, in one buffer. Views are valid until the next Add or Clear.
class HeaderList {
 public:
  struct Field {
    std::string_view name;
    std::string_view value;
    // nghttp2's flags. They say whether the sender forbids tables to keep the field.
    uint8_t flags = NGHTTP2_NV_FLAG_NONE;
  };

  void Add(std::string_view name, std::string_view value, uint8_t flags);
  void Clear();
  size_t size() const { return places_.size(); }
  Field operator[](size_t i) const;

 private:
  struct Place {
    uint32_t begin;
    uint32_t name_bytes;
    uint32_t value_bytes;
    uint8_t flags;
  };
  std::string text_;
  std::vector<Place> places_;
};

// Decodes the header blocks of one connection in order, fragment by fragment, and keeps no
// compressed bytes. A list larger than `max_list_bytes` (the sum of name + value + 32, as HTTP/2
// counts) is decoded to its end, because later blocks depend on it, but is not kept. For one
// thread.
class HeaderDecoder {
 public:
  explicit HeaderDecoder(size_t max_list_bytes);

  // Decodes the next fragment of the block; `last` is true if the block ends with it. False if the
  // bytes are not HPACK: the connection cannot go on.
  bool Feed(std::span<const uint8_t> fragment, bool last);
  // Drops the block's fields. Call before the next block.
  void Begin();

  // The fields decoded so far of the current block.
  const HeaderList& list() const { return list_; }
  size_t list_bytes() const { return list_bytes_; }
  bool too_large() const { return list_bytes_ > max_list_bytes_; }

 private:
  struct Free {
    void operator()(nghttp2_hd_inflater* inflater) const { nghttp2_hd_inflate_del(inflater); }
  };
  const size_t max_list_bytes_;
  std::unique_ptr<nghttp2_hd_inflater, Free> inflater_;
  HeaderList list_;
  size_t list_bytes_ = 0;
};

// Encodes the header blocks of one connection, with a dynamic table of 4 KiB. For one thread.
class HeaderEncoder {
 public:
  HeaderEncoder();

  // Appends the encoded block. False if nghttp2 has no memory.
  bool Encode(std::span<const HeaderList::Field> fields, std::string& out);

 private:
  struct Free {
    void operator()(nghttp2_hd_deflater* deflater) const { nghttp2_hd_deflate_del(deflater); }
  };
  std::unique_ptr<nghttp2_hd_deflater, Free> deflater_;
  std::vector<nghttp2_nv> fields_;
};

// Appends the field as a literal without indexing, which leaves the dynamic table of the peer's
// decoder as it is.
void AppendLiteral(std::string_view name, std::string_view value, std::string& out);
// Appends an HPACK integer. Its first byte has `prefix_bits` bits of the integer below `pattern`.
void AppendHpackInteger(uint32_t value, int prefix_bits, uint8_t pattern, std::string& out);

}  // namespace orcd::guard

#endif  // ORCD_WORKER_SECURITY_GUARD_HEADER_CODEC_H_
