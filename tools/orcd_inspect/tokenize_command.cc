#include "tools/orcd_inspect/tokenize_command.h"

#include <cstdint>
#include <iostream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "runtime/base/error.h"
#include "runtime/gguf/gguf_reader.h"

namespace orcd {
namespace {

struct TokenizeOptions {
  std::string model;
  TokenLineOptions lines;
  std::string separator = "\\n";
};

absl::Status Tokenize(const TokenizeOptions& options) {
  std::string separator;
  if (std::string error; !absl::CUnescape(options.separator, &separator, &error)) {
    return InvalidField("--separator", error);
  }
  if (separator.empty()) return InvalidField("--separator", "must not be empty");
  ORCD_ASSIGN_OR_RETURN(const std::unique_ptr<GgufReader> gguf, GgufReader::Open(options.model));
  ORCD_ASSIGN_OR_RETURN(const std::unique_ptr<const Tokenizer> tokenizer,
                        Tokenizer::FromGguf(*gguf));
  const std::string input(std::istreambuf_iterator<char>(std::cin), {});
  WriteTokenLines(*tokenizer, options.lines, separator, input, std::cout);
  std::cout.flush();
  if (!std::cout) return absl::DataLossError("the output could not be written");
  return absl::OkStatus();
}

}  // namespace

void WriteTokenLines(const Tokenizer& tokenizer, const TokenLineOptions& options,
                     std::string_view separator, std::string_view input, std::ostream& output) {
  while (!input.empty()) {
    const size_t end = input.find(separator);
    const std::string_view text = input.substr(0, end);
    const TextSpan whole = {0, text.size(), options.parse_special};
    const std::vector<int32_t> ids = options.text_alone
                                         ? tokenizer.Encode(text, std::span(&whole, 1))
                                         : tokenizer.Encode(text, options.parse_special);
    for (const int32_t id : ids) output << ' ' << id;
    output << '\n';
    if (end == std::string_view::npos) break;
    input.remove_prefix(end + separator.size());
  }
}

void AddTokenizeCommand(CLI::App& app, int& exit_code) {
  // The command line's parser keeps the callback, and the callback keeps the options.
  const auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command =
      app.add_subcommand("tokenize", "Write the token ids of texts on stdin, a line for each text");
  command->add_option("--model", options->model, "GGUF file whose tokenizer is used")
      ->type_name("FILE")
      ->required();
  command->add_flag("--parse-special", options->lines.parse_special,
                    "Recognise control tokens such as <|im_start|> in the texts");
  command->add_flag("--no-bos", options->lines.text_alone,
                    "Leave out the tokens that a text begins and ends with (BOS, EOS)");
  command
      ->add_option("--separator", options->separator,
                   "What stands between texts; C escapes are understood")
      ->type_name("TEXT")
      ->capture_default_str();
  command->callback([options, &exit_code] {
    const absl::Status status = Tokenize(*options);
    exit_code = status.ok() ? 0 : 1;
    if (!status.ok()) std::cerr << "orcd-inspect tokenize: " << status.message() << '\n';
  });
}

}  // namespace orcd
