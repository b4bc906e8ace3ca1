// The spelling of bytes in byte-level BPE vocabularies: each of the 256 bytes is one printable
// character.
#ifndef ORCD_RUNTIME_TEXT_BYTE_MAP_H_
#define ORCD_RUNTIME_TEXT_BYTE_MAP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace orcd {

// The spelling of `byte`, in UTF-8: the printable bytes 0x21–0x7E, 0xA1–0xAC and 0xAE–0xFF
// represent themselves (as U+0021 and so on); the others, in order, are U+0100, U+0101, … Source:
// bytes_to_unicode of GPT-2's encoder.py.
std::string SpellByte(uint8_t byte);

// The bytes that `spelling` represents; nullopt if one of its characters represents no byte.
std::optional<std::string> UnspellBytes(std::string_view spelling);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_BYTE_MAP_H_
