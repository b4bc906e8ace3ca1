#include "tools/orcd_inspect/template_command.h"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "runtime/base/error.h"
#include "runtime/gguf/gguf_reader.h"
#include "runtime/text/jinja/context.h"
#include "runtime/text/jinja/template.h"

namespace orcd {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kGgufMagic = "GGUF";

struct TemplateOptions {
  std::string template_path;
  std::string context_path;
  std::string now;
  bool spans = false;
  bool batch = false;
};

LocalTime ToLocalTime(absl::Time time, absl::TimeZone zone) {
  return {.time = absl::ToTM(time, zone),
          .microseconds = static_cast<int>(zone.At(time).subsecond / absl::Microseconds(1))};
}

absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open() || file.bad()) return absl::NotFoundError(path + " cannot be read");
  return text;
}

// The text of a template file, or the template of a model file.
absl::StatusOr<std::string> ReadTemplate(const std::string& path) {
  std::string magic(kGgufMagic.size(), '\0');
  std::ifstream(path, std::ios::binary)
      .read(magic.data(), static_cast<std::streamsize>(magic.size()));
  if (magic != kGgufMagic) return ReadWhole(path);
  ORCD_ASSIGN_OR_RETURN(const std::unique_ptr<GgufReader> gguf, GgufReader::Open(path));
  const auto source = gguf->GetString("tokenizer.chat_template");
  if (!source.ok()) return Annotate(source.status(), path);
  return std::string(*source);
}

// Sets the variables of `context` to the members of a JSON object.
absl::Status SetVariables(std::string_view json, jinja::Context& context) {
  ORCD_ASSIGN_OR_RETURN(const jinja::Value variables, context.Json(json));
  if (!variables.Is(jinja::Kind::kDict)) {
    return absl::InvalidArgumentError("the context must be a JSON object");
  }
  for (const jinja::DictEntry& entry : variables.dict().entries) {
    context.Set(entry.key.text().bytes, entry.value);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PromptPiece>> Render(std::string_view source,
                                                std::string_view context_json,
                                                const LocalTime& now) {
  ORCD_ASSIGN_OR_RETURN(const jinja::Template chat_template, jinja::Template::Parse(source));
  jinja::Context context(now.time, now.microseconds);
  ORCD_RETURN_IF_ERROR(SetVariables(context_json, context));
  return chat_template.Render(context);
}

std::string Line(const ordered_json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace);
}

std::vector<ordered_json> Spans(const std::vector<PromptPiece>& pieces) {
  std::vector<ordered_json> spans;
  size_t begin = 0;
  for (const PromptPiece& piece : pieces) {
    const size_t end = begin + piece.text.size();
    spans.push_back(
        {{"begin", begin}, {"end", end}, {"template", piece.is_template}, {"text", piece.text}});
    begin = end;
  }
  return spans;
}

absl::Status RenderFile(const TemplateOptions& options, const LocalTime& now) {
  ORCD_ASSIGN_OR_RETURN(const std::string source, ReadTemplate(options.template_path));
  ORCD_ASSIGN_OR_RETURN(const std::string variables, ReadWhole(options.context_path));
  const auto chat_template = jinja::Template::Parse(source);
  if (!chat_template.ok()) return Annotate(chat_template.status(), options.template_path);
  jinja::Context context(now.time, now.microseconds);
  const absl::Status set = SetVariables(variables, context);
  if (!set.ok()) return Annotate(set, options.context_path);
  ORCD_ASSIGN_OR_RETURN(const std::vector<PromptPiece> pieces, chat_template->Render(context));
  if (options.spans) {
    for (const ordered_json& span : Spans(pieces)) std::cout << Line(span) << '\n';
  } else {
    for (const PromptPiece& piece : pieces) std::cout << piece.text;
  }
  if (!std::cout.flush()) return absl::DataLossError("the output could not be written");
  return absl::OkStatus();
}

absl::Status Run(const TemplateOptions& options) {
  LocalTime now = ToLocalTime(absl::Now(), absl::LocalTimeZone());
  if (!options.now.empty()) {
    const auto given = ParseLocalTime(options.now);
    if (!given.ok()) return InvalidField("--now", std::string(given.status().message()));
    now = *given;
  }
  if (options.batch) return RenderLines(now, std::cin, std::cout);
  if (options.template_path.empty()) return InvalidField("--template", "must be given");
  if (options.context_path.empty()) return InvalidField("--context", "must be given");
  return RenderFile(options, now);
}

}  // namespace

absl::StatusOr<LocalTime> ParseLocalTime(std::string_view text) {
  absl::Time time;
  std::string error;
  if (!absl::ParseTime("%Y-%m-%dT%H:%M:%E*S", std::string(text), absl::UTCTimeZone(), &time,
                       &error)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", std::string(text), "' is not a time such as 2025-07-26T13:05:09: ", error));
  }
  return ToLocalTime(time, absl::UTCTimeZone());
}

absl::Status RenderLines(const LocalTime& now, std::istream& input, std::ostream& output) {
  std::string line;
  for (int64_t number = 1; std::getline(input, line); ++number) {
    const ordered_json task = ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!task.is_object() || !task.value("template", ordered_json()).is_string() ||
        !task.value("context", ordered_json()).is_string() ||
        !task.value("now", ordered_json("")).is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "line ", number, " is not an object with the texts template, context and perhaps now"));
    }
    LocalTime line_now = now;
    if (task.contains("now")) {
      const auto given = ParseLocalTime(task["now"].get_ref<const std::string&>());
      if (!given.ok()) return Annotate(given.status(), absl::StrCat("line ", number));
      line_now = *given;
    }
    const auto pieces = Render(task["template"].get_ref<const std::string&>(),
                               task["context"].get_ref<const std::string&>(), line_now);
    ordered_json answer;
    if (pieces.ok()) {
      answer["spans"] = Spans(*pieces);
    } else {
      answer["code"] = absl::StatusCodeToString(pieces.status().code());
      answer["error"] = std::string(pieces.status().message());
    }
    if (!(output << Line(answer) << '\n' << std::flush)) {
      return absl::DataLossError("the output could not be written");
    }
  }
  return absl::OkStatus();
}

void AddTemplateCommand(CLI::App& app, int& exit_code) {
  // The command line's parser keeps the callback, and the callback keeps the options.
  const auto options = std::make_shared<TemplateOptions>();
  CLI::App* command = app.add_subcommand(
      "template",
      "Render a chat template and write exactly its text.\n"
      "All strings of the context count as the user's. In a worker, the names of roles, bos_token "
      "and the like come from the worker and the model, and count as the template's");
  CLI::Option* const chat_template = command->add_option(
      "--template", options->template_path, "The template, or a GGUF file whose template is used");
  chat_template->type_name("FILE");
  CLI::Option* const context =
      command->add_option("--context", options->context_path,
                          "The template's variables: a JSON object with messages, tools, …");
  context->type_name("FILE");
  command
      ->add_option("--now", options->now,
                   "The local time that the template sees, such as 2025-07-26T13:05:09 "
                   "[the clock's]")
      ->type_name("TIME");
  CLI::Option* const spans = command->add_flag(
      "--spans", options->spans,
      "Write who wrote what, in a line for each piece of the text: {\"begin\": byte, "
      "\"end\": byte, \"template\": true or false, \"text\": …}");
  command
      ->add_flag("--batch", options->batch,
                 "Render each line of stdin, {\"template\": text, \"context\": JSON object as "
                 "text, \"now\": time}, and write a line for it: {\"spans\": […]} or "
                 "{\"code\": …, \"error\": …}")
      ->excludes(chat_template)
      ->excludes(context)
      ->excludes(spans);
  command->callback([options, &exit_code] {
    const absl::Status status = Run(*options);
    exit_code = status.ok() ? 0 : 1;
    if (!status.ok()) std::cerr << "orcd-inspect template: " << status.message() << '\n';
  });
}

}  // namespace orcd
