#include "worker/security/guard/header_codec.h"

namespace orcd::guard {
namespace {

// HTTP/2's allowance for the cost of a field beside its text.
constexpr size_t kFieldOverhead = 32;
// A buffer larger than this, left behind by a large block, is not kept for the next block.
constexpr size_t kKeptBytes = 4096;

// nghttp2 declares input that it only reads as mutable.
uint8_t* Mutable(std::string_view text) {
  return const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(text.data()));
}

std::string_view Text(const uint8_t* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace

void HeaderList::Add(std::string_view name, std::string_view value, uint8_t flags) {
  places_.push_back({.begin = static_cast<uint32_t>(text_.size()),
                     .name_bytes = static_cast<uint32_t>(name.size()),
                     .value_bytes = static_cast<uint32_t>(value.size()),
                     .flags = flags});
  text_.append(name);
  text_.append(value);
}

void HeaderList::Clear() {
  text_.clear();
  places_.clear();
  if (text_.capacity() > kKeptBytes) text_.shrink_to_fit();
  if (places_.capacity() * sizeof(Place) > kKeptBytes) places_.shrink_to_fit();
}

HeaderList::Field HeaderList::operator[](size_t i) const {
  const Place& place = places_[i];
  const std::string_view text(text_);
  return {.name = text.substr(place.begin, place.name_bytes),
          .value = text.substr(place.begin + place.name_bytes, place.value_bytes),
          .flags = place.flags};
}

HeaderDecoder::HeaderDecoder(size_t max_list_bytes) : max_list_bytes_(max_list_bytes) {
  nghttp2_hd_inflater* inflater = nullptr;
  if (nghttp2_hd_inflate_new(&inflater) == 0) inflater_.reset(inflater);
}

void HeaderDecoder::Begin() {
  list_.Clear();
  list_bytes_ = 0;
}

bool HeaderDecoder::Feed(std::span<const uint8_t> fragment, bool last) {
  if (inflater_ == nullptr) return false;
  const uint8_t* at = fragment.data();
  size_t left = fragment.size();
  while (true) {
    nghttp2_nv field;
    int flags = 0;
    const ssize_t taken =
        nghttp2_hd_inflate_hd2(inflater_.get(), &field, &flags, at, left, last ? 1 : 0);
    if (taken < 0) return false;
    at += taken;
    left -= static_cast<size_t>(taken);
    if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0) {
      list_bytes_ += field.namelen + field.valuelen + kFieldOverhead;
      if (too_large()) {
        list_.Clear();
      } else {
        list_.Add(Text(field.name, field.namelen), Text(field.value, field.valuelen), field.flags);
      }
    }
    if ((flags & NGHTTP2_HD_INFLATE_FINAL) != 0) {
      nghttp2_hd_inflate_end_headers(inflater_.get());
      return true;
    }
    if (left == 0 && (flags & NGHTTP2_HD_INFLATE_EMIT) == 0) return true;
  }
}

HeaderEncoder::HeaderEncoder() {
  nghttp2_hd_deflater* deflater = nullptr;
  if (nghttp2_hd_deflate_new(&deflater, NGHTTP2_DEFAULT_HEADER_TABLE_SIZE) == 0) {
    deflater_.reset(deflater);
  }
}

bool HeaderEncoder::Encode(std::span<const HeaderList::Field> fields, std::string& out) {
  if (deflater_ == nullptr) return false;
  fields_.clear();
  for (const HeaderList::Field& field : fields) {
    fields_.push_back({.name = Mutable(field.name),
                       .value = Mutable(field.value),
                       .namelen = field.name.size(),
                       .valuelen = field.value.size(),
                       .flags = static_cast<uint8_t>(field.flags & NGHTTP2_NV_FLAG_NO_INDEX)});
  }
  const size_t begin = out.size();
  const size_t bound = nghttp2_hd_deflate_bound(deflater_.get(), fields_.data(), fields_.size());
  out.resize(begin + bound);
  const ssize_t size =
      nghttp2_hd_deflate_hd(deflater_.get(), reinterpret_cast<uint8_t*>(out.data()) + begin, bound,
                            fields_.data(), fields_.size());
  out.resize(begin + static_cast<size_t>(size < 0 ? 0 : size));
  return size >= 0;
}

void AppendHpackInteger(uint32_t value, int prefix_bits, uint8_t pattern, std::string& out) {
  const uint32_t most = (1u << prefix_bits) - 1;
  if (value < most) {
    out.push_back(static_cast<char>(pattern | value));
    return;
  }
  out.push_back(static_cast<char>(pattern | most));
  for (value -= most; value >= 128; value >>= 7) {
    out.push_back(static_cast<char>(value % 128 + 128));
  }
  out.push_back(static_cast<char>(value));
}

void AppendLiteral(std::string_view name, std::string_view value, std::string& out) {
  out.push_back('\0');
  for (const std::string_view text : {name, value}) {
    AppendHpackInteger(static_cast<uint32_t>(text.size()), 7, 0, out);
    out.append(text);
  }
}

}  // namespace orcd::guard
