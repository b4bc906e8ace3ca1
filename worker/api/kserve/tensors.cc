#include "worker/api/kserve/tensors.h"

#include <algorithm>
#include <array>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace orcd::kserve {
namespace {

constexpr char kBytes[] = "BYTES";
constexpr char kBool[] = "BOOL";
constexpr char kInt32[] = "INT32";
constexpr char kUint32[] = "UINT32";
// Size of the length before each element of a raw BYTES tensor.
constexpr size_t kLengthBytes = 4;

constexpr std::array<TensorSpec, 7> kInputs = {{
    {kTextInput, kBytes, inference::TYPE_STRING, 1, false},
    {kSamplingParameters, kBytes, inference::TYPE_STRING, 1, true},
    {kStream, kBool, inference::TYPE_BOOL, 1, true},
    {kExcludeInput, kBool, inference::TYPE_BOOL, 1, true},
    {kReturnFinishReason, kBool, inference::TYPE_BOOL, 1, true},
    {kReturnInputTokens, kBool, inference::TYPE_BOOL, 1, true},
    {kReturnOutputTokens, kBool, inference::TYPE_BOOL, 1, true},
}};

constexpr std::array<TensorSpec, 5> kOutputs = {{
    {kTextOutput, kBytes, inference::TYPE_STRING, 1, false},
    {kFinishReason, kBytes, inference::TYPE_STRING, 1, true},
    {kTokenIds, kInt32, inference::TYPE_INT32, -1, true},
    {kInputTokens, kUint32, inference::TYPE_UINT32, 1, true},
    {kOutputTokens, kUint32, inference::TYPE_UINT32, 1, true},
}};

using InputTensor = inference::ModelInferRequest::InferInputTensor;

// Number of elements of any type.
int Elements(const inference::InferTensorContents& contents) {
  return contents.bool_contents_size() + contents.int_contents_size() +
         contents.int64_contents_size() + contents.uint_contents_size() +
         contents.uint64_contents_size() + contents.fp32_contents_size() +
         contents.fp64_contents_size() + contents.bytes_contents_size();
}

uint32_t LittleEndian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    value |= uint32_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return value;
}

std::string LittleEndian(uint32_t value) {
  std::string bytes(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) bytes[i] = static_cast<char>(value >> (8 * i) & 0xFF);
  return bytes;
}

// The single element of an input.
class Element {
 public:
  Element(const inference::ModelInferRequest& request, int index)
      : tensor_(request.inputs(index)),
        raw_(request.raw_input_contents_size() > 0 ? &request.raw_input_contents(index) : nullptr),
        path_(absl::StrCat("inputs[", index, "]")),
        contents_path_(raw_ == nullptr ? absl::StrCat(path_, ".contents")
                                       : absl::StrCat("raw_input_contents[", index, "]")) {}

  // Checks everything but the value.
  absl::Status Check(const TensorSpec& spec) const;
  absl::StatusOr<std::string_view> Bytes() const;
  absl::StatusOr<bool> Bool() const;

 private:
  absl::Status CheckShape() const;
  absl::Status CheckParameters() const;
  absl::Status CheckTyped(int of_its_type, const char* list) const;
  absl::Status Wrong(std::string_view part, std::string_view message) const {
    return InvalidField(absl::StrCat(path_, std::string(part)),
                        absl::StrCat("of ", Quoted(tensor_.name()), " ", std::string(message)));
  }
  absl::Status WrongContents(std::string_view message) const {
    return InvalidField(contents_path_,
                        absl::StrCat("of ", Quoted(tensor_.name()), " ", std::string(message)));
  }

  const InputTensor& tensor_;
  const std::string* const raw_;
  const std::string path_;
  const std::string contents_path_;
};

absl::Status Element::Check(const TensorSpec& spec) const {
  if (tensor_.datatype() != spec.datatype) {
    return Wrong(".datatype",
                 absl::StrCat("is ", Quoted(tensor_.datatype()), "; it must be ", spec.datatype));
  }
  ORCD_RETURN_IF_ERROR(CheckShape());
  ORCD_RETURN_IF_ERROR(CheckParameters());
  if (raw_ != nullptr && Elements(tensor_.contents()) > 0) {
    return Wrong(".contents",
                 "is there beside raw_input_contents; send every tensor in one of the two");
  }
  return absl::OkStatus();
}

absl::Status Element::CheckShape() const {
  const auto& shape = tensor_.shape();
  const bool is_one =
      std::all_of(shape.begin(), shape.end(), [](int64_t size) { return size == 1; });
  if (is_one && (shape.size() == 1 || shape.size() == 2)) return absl::OkStatus();
  std::string text = shape.empty() ? "is missing" : "is [";
  constexpr int kMost = 4;
  for (int i = 0; i < std::min(shape.size(), kMost); ++i) {
    absl::StrAppend(&text, i > 0 ? ", " : "", shape[i]);
  }
  if (!shape.empty()) text += shape.size() > kMost ? ", ...]" : "]";
  return Wrong(".shape", text + "; it must be [1]: a request has one prompt");
}

absl::Status Element::CheckParameters() const {
  for (const auto& [name, value] : tensor_.parameters()) {
    // KServe's client adds this parameter.
    if (name != "binary_data_size") {
      return Wrong(".parameters",
                   absl::StrCat("has ", Quoted(name), ", which is not supported; leave it out"));
    }
    if (raw_ == nullptr || !value.has_int64_param() ||
        value.int64_param() != static_cast<int64_t>(raw_->size())) {
      return Wrong(".parameters",
                   "has a 'binary_data_size' that is not the number of its raw bytes; correct it "
                   "or leave it out");
    }
  }
  return absl::OkStatus();
}

absl::Status Element::CheckTyped(int of_its_type, const char* list) const {
  const int elements = Elements(tensor_.contents());
  if (of_its_type == 1 && elements == 1) return absl::OkStatus();
  return WrongContents(absl::StrCat("must have one element, in ", list, "; has ", elements, ", ",
                                    of_its_type, " of them there"));
}

absl::StatusOr<std::string_view> Element::Bytes() const {
  if (raw_ == nullptr) {
    ORCD_RETURN_IF_ERROR(CheckTyped(tensor_.contents().bytes_contents_size(), "bytes_contents"));
    return tensor_.contents().bytes_contents(0);
  }
  const std::string_view raw = *raw_;
  if (raw.size() < kLengthBytes) {
    return WrongContents(absl::StrCat("has ", raw.size(),
                                      " bytes; it must be a length in 4 bytes, little-endian, and "
                                      "as many bytes as that says"));
  }
  const uint32_t length = LittleEndian(raw);
  if (length != raw.size() - kLengthBytes) {
    return WrongContents(absl::StrCat("says that ", length, " bytes follow, and ",
                                      raw.size() - kLengthBytes,
                                      " do; it must be one element, its length in the first 4 "
                                      "bytes, little-endian"));
  }
  return raw.substr(kLengthBytes);
}

absl::StatusOr<bool> Element::Bool() const {
  if (raw_ == nullptr) {
    ORCD_RETURN_IF_ERROR(CheckTyped(tensor_.contents().bool_contents_size(), "bool_contents"));
    return tensor_.contents().bool_contents(0);
  }
  if (raw_->size() != 1 || static_cast<unsigned char>(raw_->front()) > 1) {
    return WrongContents("must be one byte, 0 or 1");
  }
  return raw_->front() == 1;
}

absl::StatusOr<std::string> ReadText(const Element& element, const char* name) {
  ORCD_ASSIGN_OR_RETURN(const std::string_view text, element.Bytes());
  if (const size_t at = FindInvalidUtf8(text); at < text.size()) {
    return InvalidField(name, absl::StrCat("is not UTF-8 at byte ", at, "; send text as UTF-8"));
  }
  return std::string(text);
}

// Receives the values of the BOOL inputs.
struct Switches {
  std::optional<bool> exclude_input;
  InferInputs& inputs;

  void Set(std::string_view name, bool value) {
    if (name == kStream) inputs.stream = value;
    if (name == kExcludeInput) exclude_input = value;
    if (name == kReturnFinishReason) inputs.return_finish_reason = value;
    if (name == kReturnInputTokens) inputs.return_input_tokens = value;
    if (name == kReturnOutputTokens) inputs.return_output_tokens = value;
  }
};

}  // namespace

std::span<const TensorSpec> InputSpecs() { return kInputs; }
std::span<const TensorSpec> OutputSpecs() { return kOutputs; }

std::string Quoted(std::string_view name) {
  constexpr size_t kMost = 64;
  const std::string text = ReplaceInvalidUtf8(name.substr(0, kMost));
  return absl::StrCat("'", text, name.size() > kMost ? "..." : "", "'");
}

absl::StatusOr<InferInputs> ReadInputs(const inference::ModelInferRequest& request) {
  InferInputs inputs;
  inputs.raw = request.raw_input_contents_size() > 0;
  if (inputs.raw && request.raw_input_contents_size() != request.inputs_size()) {
    return InvalidField(
        "raw_input_contents",
        absl::StrCat("has ", request.raw_input_contents_size(), " entries, and there are ",
                     request.inputs_size(), " inputs; send one for each, in their order"));
  }
  Switches switches{.exclude_input = std::nullopt, .inputs = inputs};
  absl::flat_hash_set<std::string_view> seen;
  for (int i = 0; i < request.inputs_size(); ++i) {
    const std::string& name = request.inputs(i).name();
    const auto spec = std::find_if(kInputs.begin(), kInputs.end(),
                                   [&](const TensorSpec& input) { return name == input.name; });
    const std::string field = absl::StrCat("inputs[", i, "].name");
    if (spec == kInputs.end()) {
      return InvalidField(field, absl::StrCat("is ", Quoted(name),
                                              ", which is no input of this model; ModelMetadata "
                                              "lists those there are"));
    }
    if (!seen.insert(spec->name).second) {
      return InvalidField(field, absl::StrCat("is ", Quoted(name), " again; send it once"));
    }
    const Element element(request, i);
    ORCD_RETURN_IF_ERROR(element.Check(*spec));
    if (name == kTextInput) {
      ORCD_ASSIGN_OR_RETURN(inputs.text, ReadText(element, kTextInput));
    } else if (name == kSamplingParameters) {
      ORCD_ASSIGN_OR_RETURN(inputs.sampling_parameters, ReadText(element, kSamplingParameters));
    } else {
      ORCD_ASSIGN_OR_RETURN(const bool value, element.Bool());
      switches.Set(name, value);
    }
  }
  if (!seen.contains(kTextInput)) {
    return InvalidField("inputs", "has no 'text_input'; send the prompt in it, BYTES of shape [1]");
  }
  inputs.echo_text = !switches.exclude_input.value_or(inputs.stream);
  if (inputs.echo_text && inputs.stream) {
    return InvalidField(kExcludeInput,
                        "is false beside 'stream'; a stream has the generated text alone: leave it "
                        "out or set it");
  }
  return inputs;
}

inference::ModelInferResponse::InferOutputTensor& OutputWriter::Add(const char* name,
                                                                    const char* datatype,
                                                                    int64_t size) {
  auto* tensor = response_.add_outputs();
  tensor->set_name(name);
  tensor->set_datatype(datatype);
  tensor->add_shape(size);
  return *tensor;
}

void OutputWriter::AddBytes(const char* name, std::string_view value) {
  auto& tensor = Add(name, kBytes, 1);
  if (raw_) {
    std::string& raw = *response_.add_raw_output_contents();
    raw = LittleEndian(static_cast<uint32_t>(value.size()));
    raw += value;
  } else {
    tensor.mutable_contents()->add_bytes_contents(value.data(), value.size());
  }
}

void OutputWriter::AddUint32(const char* name, uint32_t value) {
  auto& tensor = Add(name, kUint32, 1);
  if (raw_) {
    *response_.add_raw_output_contents() = LittleEndian(value);
  } else {
    tensor.mutable_contents()->add_uint_contents(value);
  }
}

void OutputWriter::AddInt32s(const char* name, std::span<const int32_t> values) {
  auto& tensor = Add(name, kInt32, static_cast<int64_t>(values.size()));
  if (raw_) {
    std::string& raw = *response_.add_raw_output_contents();
    for (const int32_t value : values) raw += LittleEndian(static_cast<uint32_t>(value));
  } else {
    tensor.mutable_contents()->mutable_int_contents()->Add(values.begin(), values.end());
  }
}

}  // namespace orcd::kserve
