#include "tools/orcd_inspect/gguf_command.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "runtime/base/utf8.h"

namespace orcd {
namespace {

constexpr size_t kShownElements = 8;
constexpr size_t kShownCharacters = 72;

// Returns `text` without control characters or broken UTF-8, cut to fit into a line.
std::string Printable(std::string_view text) {
  std::string shown(text.substr(0, kShownCharacters));
  // Drops a character cut in half, which would be escaped as broken UTF-8.
  if (shown.size() < text.size()) {
    while (!shown.empty() && (static_cast<uint8_t>(text[shown.size()]) & 0xc0) == 0x80) {
      shown.pop_back();
    }
  }
  return FindInvalidUtf8(shown) == shown.size() ? absl::Utf8SafeCEscape(shown)
                                                : absl::CEscape(shown);
}

std::string DescribeText(std::string_view text) {
  std::string shown = absl::StrFormat("\"%s\"", Printable(text));
  if (text.size() > kShownCharacters) absl::StrAppendFormat(&shown, "… (%d bytes)", text.size());
  return shown;
}

template <typename T, typename Describe>
std::string DescribeElements(const std::vector<T>& values, Describe describe) {
  std::string text = "[";
  for (size_t i = 0; i < values.size() && i < kShownElements; ++i) {
    absl::StrAppendFormat(&text, "%s%s", i == 0 ? "" : ", ", describe(values[i]));
  }
  return text + (values.size() > kShownElements ? ", …]" : "]");
}

std::string DescribeArray(const GgufArray& array) {
  const auto number = [](auto value) { return absl::StrFormat("%d", value); };
  if (!array.strings.empty()) return DescribeElements(array.strings, DescribeText);
  if (!array.float_values.empty()) {
    return DescribeElements(array.float_values,
                            [](double value) { return absl::StrFormat("%g", value); });
  }
  if (!array.signed_values.empty()) return DescribeElements(array.signed_values, number);
  return DescribeElements(array.unsigned_values, number);
}

struct Row {
  std::string name;
  std::string type;
  std::string value;
};

Row DescribeEntry(std::string_view key, const GgufEntry& entry) {
  Row row = {Printable(key), std::string(GgufTypeName(entry.type)), ""};
  if (const auto* value = std::get_if<uint64_t>(&entry.value)) {
    row.value = absl::StrFormat("%d", *value);
  } else if (const auto* value = std::get_if<int64_t>(&entry.value)) {
    row.value = absl::StrFormat("%d", *value);
  } else if (const auto* value = std::get_if<double>(&entry.value)) {
    row.value = absl::StrFormat("%g", *value);
  } else if (const auto* value = std::get_if<bool>(&entry.value)) {
    row.value = *value ? "true" : "false";
  } else if (const auto* value = std::get_if<std::string_view>(&entry.value)) {
    row.value = DescribeText(*value);
  } else {
    const GgufArray& array = *std::get<std::shared_ptr<const GgufArray>>(entry.value);
    row.type = absl::StrFormat("%s × %d", GgufTypeName(array.type), array.size());
    row.value = DescribeArray(array);
  }
  return row;
}

std::string DescribeBytes(uint64_t bytes) {
  if (bytes < 10'240) return absl::StrFormat("%d B", bytes);
  if (bytes < (10u << 20)) return absl::StrFormat("%.1f KiB", bytes / 1024.0);
  if (bytes < (10ull << 30)) return absl::StrFormat("%.1f MiB", bytes / 1048576.0);
  return absl::StrFormat("%.1f GiB", bytes / 1073741824.0);
}

// Number of characters, if `text` is UTF-8.
size_t Width(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; });
}

void AppendTable(std::string& out, const std::vector<Row>& rows) {
  size_t name_width = 0;
  size_t type_width = 0;
  for (const Row& row : rows) {
    name_width = std::max(name_width, Width(row.name));
    type_width = std::max(type_width, Width(row.type));
  }
  for (const Row& row : rows) {
    absl::StrAppendFormat(&out, "  %s%s  %s%s  %s\n", row.name,
                          std::string(name_width - Width(row.name), ' '), row.type,
                          std::string(type_width - Width(row.type), ' '), row.value);
  }
}

std::string DescribeShape(const TensorView& tensor) {
  std::string text = "[";
  for (uint32_t d = 0; d < tensor.n_dims; ++d) {
    absl::StrAppendFormat(&text, "%s%d", d == 0 ? "" : ", ", tensor.ne[d]);
  }
  return text + "]";
}

// Such as `169 Q5_0, 121 F32; 630167424 weights in 463.5 MiB, 6.17 bits a weight`.
std::string DescribeTotals(const std::vector<TensorView>& tensors) {
  std::map<std::string_view, int> by_type;
  uint64_t weights = 0;
  uint64_t bytes = 0;
  for (const TensorView& tensor : tensors) {
    ++by_type[GetTensorTypeInfo(tensor.type).name];
    weights += tensor.element_count();
    bytes += tensor.data.size();
  }
  std::vector<std::pair<int, std::string_view>> counts;
  for (const auto& [type, count] : by_type) counts.emplace_back(count, type);
  std::sort(counts.rbegin(), counts.rend());
  std::string text;
  for (const auto& [count, type] : counts) {
    absl::StrAppendFormat(&text, "%s%d %s", text.empty() ? "" : ", ", count, type);
  }
  return absl::StrFormat("%s; %d weights in %s, %.2f bits a weight", text, weights,
                         DescribeBytes(bytes), 8.0 * bytes / weights);
}

}  // namespace

std::string DescribeGguf(const GgufReader& gguf) {
  std::string out;
  for (const MappedFile& file : gguf.files()) {
    absl::StrAppendFormat(&out, "%s  %s\n", Printable(file.path()),
                          DescribeBytes(file.bytes().size()));
  }
  absl::StrAppendFormat(&out, "GGUF version %d\n\nMetadata, %d keys\n", gguf.version(),
                        gguf.keys().size());
  std::vector<Row> rows;
  for (std::string_view key : gguf.keys()) rows.push_back(DescribeEntry(key, *gguf.Find(key)));
  AppendTable(out, rows);
  absl::StrAppendFormat(&out, "\nTensors, %d (shape with the contiguous dimension first)\n",
                        gguf.tensors().size());
  rows.clear();
  for (const TensorView& tensor : gguf.tensors()) {
    rows.push_back(
        {Printable(tensor.name), std::string(GetTensorTypeInfo(tensor.type).name),
         absl::StrFormat("%-16s %12s", DescribeShape(tensor), DescribeBytes(tensor.data.size()))});
  }
  AppendTable(out, rows);
  if (!gguf.tensors().empty()) {
    absl::StrAppendFormat(&out, "  %s\n", DescribeTotals(gguf.tensors()));
  }
  return out;
}

void AddGgufCommand(CLI::App& app, int& exit_code) {
  const auto path = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "gguf", "Write a file's metadata and tensors as tables; also of models that cannot be run");
  command->add_option("FILE", *path, "GGUF file; the first one where it is split")->required();
  command->callback([path, &exit_code] {
    const auto gguf = GgufReader::Open(*path, AllowedTensorTypes::kSized);
    exit_code = gguf.ok() ? 0 : 1;
    if (gguf.ok()) {
      std::cout << DescribeGguf(**gguf) << std::flush;
    } else {
      std::cerr << "orcd-inspect gguf: " << gguf.status().message() << '\n';
    }
  });
}

}  // namespace orcd
