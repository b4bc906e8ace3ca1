#include "tools/orcdctl/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/orcdctl/exit_codes.h"

namespace orcd::ctl {
namespace {

void AddTimeout(CLI::App& app, std::optional<absl::Duration>* timeout, const std::string& help) {
  app.add_option_function<std::string>(
         "--timeout",
         [timeout](const std::string& text) {
           auto parsed = ParseTimeout(text);
           if (!parsed.ok()) throw CLI::ValidationError(std::string(parsed.status().message()));
           *timeout = *parsed;
         },
         help)
      ->type_name("TIME");
}

// Makes an option repeatable, with one value each time. By default CLI11 takes every following word
// as a value.
CLI::Option* OneValueEach(CLI::Option* option) {
  return option->expected(1)->take_all()->allow_extra_args(false);
}

// CLI11 parses an argument `[a,b]` as a list of two. This mark before the bracket, with which no
// option's value begins, keeps the argument as text.
constexpr char kTextMark = '\x01';

bool LooksLikeAList(const std::string& text) {
  return text.size() >= 2 && text.front() == '[' && text.back() == ']';
}

std::string MarkText(const std::string& text) {
  return LooksLikeAList(text) ? kTextMark + text : text;
}

std::string UnmarkText(const std::string& text) {
  return !text.empty() && text[0] == kTextMark && LooksLikeAList(text.substr(1)) ? text.substr(1)
                                                                                 : text;
}

void UnmarkValues(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) option->transform(UnmarkText);
  for (CLI::App* command : app.get_subcommands({})) UnmarkValues(*command);
}

void AddHealth(CLI::App& app, HealthOptions* options) {
  CLI::App* health = app.add_subcommand("health", "Show the worker's state");
  health->add_flag("--ready", options->ready, "Exit 1 unless the worker is READY");
}

void AddLoad(CLI::App& app, LoadOptions* options) {
  CLI::App* load = app.add_subcommand(
      "load", "Load a model from the worker's model directory; Ctrl-C rolls the load back");
  load->add_option("MODEL", options->model, "The file's path in the model directory")->required();
  load->add_option("--id", options->model_id, "Name for requests [the file's name]");
  load->add_option("--sha256", options->sha256, "SHA-256 that the file must have");
  load->add_flag("--replace", options->replace, "Unload another model that is loaded");
}

void AddUnload(CLI::App& app, UnloadOptions* options) {
  CLI::App* unload = app.add_subcommand("unload", "Free the model and its memory");
  unload->add_option("--model-id", options->model_id, "Only if this model is loaded");
  unload->add_flag("--force", options->force, "Cancel the requests that run");
}

void AddForm(CLI::App& generate, ConstraintOptions& o) {
  const std::string form = "Form of the answer";
  generate.add_option("--json-schema", o.json_schema, "JSON that this JSON Schema accepts")
      ->type_name("FILE|JSON")
      ->group(form);
  generate.add_flag("--json-object", o.json_object, "Any JSON object")->group(form);
  generate.add_option("--regex", o.regex, "Text that the whole expression matches")
      ->type_name("REGEX")
      ->group(form);
  OneValueEach(generate.add_option("--choice", o.choices, "One of these texts; repeatable"))
      ->type_name("TEXT")
      ->group(form);
  generate.add_option("--lark", o.lark_file, "What this grammar generates, in llguidance's Lark")
      ->type_name("FILE")
      ->group(form);
  generate.add_option("--ebnf", o.ebnf_file, "What this grammar generates, in EBNF or GBNF")
      ->type_name("FILE")
      ->group(form);
  generate
      .add_option("--structural-tags", o.structural_tags_file,
                  "Text with tags in it: orcd.v1.StructuralTags in JSON")
      ->type_name("FILE")
      ->group(form);
  CLI::Option* after =
      generate.add_option("--after", o.after, "The form begins after this text [at once]")
          ->type_name("TEXT")
          ->group(form);
  generate.add_option("--after-token", o.after_token, "The form begins after this token id")
      ->type_name("ID")
      ->group(form)
      ->excludes(after);
}

void AddGenerate(CLI::App& app, GenerateOptions* o) {
  CLI::App* generate = app.add_subcommand(
      "generate",
      "Generate text; Ctrl-C cancels. Without PROMPT, or with -, it is read from stdin");
  generate->add_option("PROMPT", o->prompt, "The user's message; words are joined by spaces");
  CLI::Option* system =
      generate->add_option("--system", o->system, "System message")->type_name("TEXT");
  CLI::Option* raw = generate->add_flag("--raw", o->raw, "Send the text as it is, not as a chat");
  generate
      ->add_flag("--parse-special", o->parse_special,
                 "With --raw: let <|im_start|> and its kind become control tokens")
      ->needs(raw);
  CLI::Option* interactive = generate->add_flag(
      "-i,--interactive", o->interactive, "Chat; Ctrl-C cancels an answer, Ctrl-D ends the chat");
  CLI::Option* tools = generate
                           ->add_option("--tools", o->tools_file,
                                        "Functions the model may call: JSON, as OpenAI's tools")
                           ->type_name("FILE");
  CLI::Option* documents =
      generate
          ->add_option("--documents", o->documents_file,
                       "Documents to answer from: JSON, {\"title\":…,\"text\":…} each")
          ->type_name("FILE");
  CLI::Option* arguments =
      generate
          ->add_option("--template-args", o->template_args,
                       "Variables for the chat template, such as {\"enable_thinking\":false}")
          ->type_name("JSON");
  CLI::Option* chat_template =
      generate
          ->add_option("--template", o->template_file,
                       "Chat template in place of the model's, if the worker allows it")
          ->type_name("FILE");
  CLI::Option* continued =
      generate->add_option("--continue", o->continued, "Beginning of the answer; the model goes on")
          ->type_name("TEXT");
  continued->excludes(interactive);
  for (CLI::Option* of_chats :
       {system, interactive, tools, documents, arguments, chat_template, continued}) {
    raw->excludes(of_chats);
  }
  generate->add_flag("--show-special", o->show_special,
                     "Show control tokens such as <|im_end|> in the answer");
  generate->add_flag("--stats", o->stats, "Say at the end what it took, on stderr");

  const std::string sampling = "Sampling (some models' files have other defaults)";
  generate->add_option("--temperature", o->temperature, "0: greedy [1]")->group(sampling);
  generate->add_option("--top-k", o->top_k, "Keep the K likeliest; 0: all [0]")->group(sampling);
  generate->add_option("--top-p", o->top_p, "Keep probability mass P [1]")->group(sampling);
  generate->add_option("--min-p", o->min_p, "Keep those P times as likely as the likeliest [0]")
      ->group(sampling);
  generate->add_option("--typical-p", o->typical_p, "Locally typical sampling; 1: off [1]")
      ->group(sampling);
  generate->add_option("--repetition-penalty", o->repetition_penalty, "[1]")->group(sampling);
  generate->add_option("--frequency-penalty", o->frequency_penalty, "[0]")->group(sampling);
  generate->add_option("--presence-penalty", o->presence_penalty, "[0]")->group(sampling);
  generate
      ->add_flag("--count-prompt", o->count_prompt,
                 "Frequency and presence penalties count the prompt's tokens too")
      ->group(sampling);
  generate
      ->add_flag("--temperature-first", o->temperature_first,
                 "The filters see the distribution after temperature, as vLLM's do")
      ->group(sampling);
  OneValueEach(
      generate->add_option("--logit-bias", o->logit_bias, "Add BIAS to a logit; repeatable"))
      ->type_name("ID=BIAS")
      ->group(sampling);
  generate->add_option("--seed", o->seed, "[random; --stats shows it]")
      ->check(CLI::NonNegativeNumber)
      ->group(sampling);

  const std::string ending = "Ending";
  generate->add_option("--max-tokens", o->max_tokens, "[what the context leaves]")->group(ending);
  generate->add_option("--min-tokens", o->min_tokens, "[0]")->group(ending);
  OneValueEach(generate->add_option("--stop", o->stop, "End before this text; repeatable"))
      ->type_name("TEXT")
      ->group(ending);
  OneValueEach(generate->add_option("--stop-id", o->stop_ids, "End at this token id; repeatable"))
      ->type_name("ID")
      ->group(ending);
  generate->add_flag("--ignore-eog", o->ignore_eog, "Go on past the model's end of its turn")
      ->group(ending);

  AddForm(*generate, o->constraint);

  generate
      ->add_option("--logprobs", o->logprobs,
                   "With --json: log-probabilities, also of the N likeliest")
      ->type_name("N");
  generate
      ->add_option("--prompt-logprobs", o->prompt_logprobs,
                   "With --json: log-probabilities of the prompt, also of the N likeliest")
      ->type_name("N");
  generate
      ->add_option("--samples", o->samples,
                   "With --json: so many answers, with seeds that follow one another")
      ->type_name("N");
  generate->add_option("--priority", o->priority, "-10 to 10; a level is worth 5 s of waiting");
  generate->add_flag("--no-cache", o->no_cache, "Share no KV with requests that begin alike");
  generate->add_option("--cache-salt", o->cache_salt, "Share KV only under this name");
  generate->add_flag("--no-speculation", o->no_speculation,
                     "Guess no tokens; guesses change the speed alone");
  generate->add_option("--request-id", o->request_id, "Name for cancel and the logs");
  generate->add_option("--model-id", o->model_id, "Only if this model is loaded");
}

void AddTokenize(CLI::App& app, TokenizeOptions* options) {
  CLI::App* tokenize = app.add_subcommand(
      "tokenize", "Show a text's token ids. Without TEXT, or with -, it is read from stdin");
  tokenize->add_option("TEXT", options->text, "Words are joined by spaces");
  tokenize->add_flag("--parse-special", options->parse_special,
                     "Let <|im_start|> and its kind become control tokens");
  tokenize->add_option("--model-id", options->model_id, "Only if this model is loaded");
}

void AddCancel(CLI::App& app, CancelOptions* options) {
  CLI::App* cancel = app.add_subcommand("cancel", "End a request");
  cancel->add_option("ID", options->request_id, "The request's id")->required();
}

void AddDrain(CLI::App& app, DrainOptions* options) {
  CLI::App* drain = app.add_subcommand(
      "drain", "Stop accepting work, finish what runs, and wait until the worker may be deleted");
  AddTimeout(*drain, &options->timeout,
             "How long running requests may go on [the worker's --drain-timeout]");
  drain->add_flag("--exit", options->exit, "Have the worker exit once it is drained");
}

void AddCredentials(CLI::App& app, CredentialFiles* files) {
  const auto add = [&app](const char* flag, const char* variable, std::string& path,
                          const char* help) {
    app.add_option(flag, path, help)->envname(variable)->type_name("FILE")->group("Security");
  };
  add("--tls-ca", "ORCD_TLS_CA", files->ca,
      "Authorities that sign the worker's certificate [plaintext]");
  add("--tls-cert", "ORCD_TLS_CERT", files->certificate, "Certificate to show to the worker");
  add("--tls-key", "ORCD_TLS_KEY", files->key, "Private key of --tls-cert");
  add("--token-file", "ORCD_TOKEN_FILE", files->token, "Bearer token to show to the worker");
}

// Checks that involve more than one argument.
std::string Contradiction(const CommandLine& line) {
  const CredentialFiles& credentials = line.credentials;
  if (credentials.certificate.empty() != credentials.key.empty()) {
    return "--tls-cert and --tls-key need each other";
  }
  if (credentials.ca.empty() && !credentials.certificate.empty()) {
    return "--tls-cert needs --tls-ca: without it the connection is plaintext";
  }
  const auto* generate = std::get_if<GenerateOptions>(&line.command);
  if (generate == nullptr || line.json) return "";
  if (generate->logprobs) return "--logprobs needs --json, which shows them";
  if (generate->prompt_logprobs) return "--prompt-logprobs needs --json, which shows them";
  if (generate->samples) return "--samples needs --json, which tells them apart";
  return "";
}

}  // namespace

absl::StatusOr<absl::Duration> ParseTimeout(const std::string& text) {
  absl::Duration duration;
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) {
    // NaN is not a valid time.
    duration = std::isnan(seconds) ? absl::ZeroDuration() : absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &duration)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--timeout ", text, ": expected a time such as 500ms, 10s, 2m, or a number of seconds"));
  }
  if (!(duration > absl::ZeroDuration())) {
    return absl::InvalidArgumentError(absl::StrCat("--timeout ", text, ": must be positive"));
  }
  // A year is as good as no timeout, and overflows no clock.
  return std::min(duration, absl::Hours(24 * 365));
}

CommandLineResult ParseCommandLine(const std::vector<std::string>& args) {
  CommandLine line;
  HealthOptions health;
  LoadOptions load;
  UnloadOptions unload;
  GenerateOptions generate;
  TokenizeOptions tokenize;
  CancelOptions cancel;
  DrainOptions drain;

  CLI::App app("Talks to a worker-orcd.", "orcdctl");
  app.footer(kExitStatusHelp);
  app.set_version_flag("--version", "orcdctl " ORCD_VERSION);
  app.require_subcommand(1);
  // Options of orcdctl may also follow the command.
  app.fallthrough();
  app.add_option("--address", line.address, "The worker's host:port [127.0.0.1:50051]")
      ->envname("ORCD_ADDRESS")
      ->type_name("ADDRESS");
  AddCredentials(app, &line.credentials);
  app.add_flag("--json", line.json, "Print a JSON object a line");
  AddTimeout(app, &line.timeout, "Give up after this long [10s for calls that answer at once]");
  AddHealth(app, &health);
  AddLoad(app, &load);
  AddUnload(app, &unload);
  AddGenerate(app, &generate);
  AddTokenize(app, &tokenize);
  AddCancel(app, &cancel);
  AddDrain(app, &drain);

  UnmarkValues(app);

  // CLI11 takes arguments in reverse order.
  std::vector<std::string> reversed;
  std::transform(args.rbegin(), args.rend(), std::back_inserter(reversed), MarkText);
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    if (const auto extra = app.remaining(); app.get_subcommands().empty() && !extra.empty()) {
      return {.exit_code = kExitUsage,
              .output = absl::StrCat("orcdctl has no command ", UnmarkText(extra[0]),
                                     "\nRun with --help for more information.\n")};
    }
    std::ostringstream out;
    std::ostringstream err;
    const bool failed = app.exit(error, out, err) != 0;
    return {.exit_code = failed ? kExitUsage : kExitOk, .output = out.str() + err.str()};
  }
  if (line.address.empty()) line.address = "127.0.0.1:50051";

  const std::string command = app.get_subcommands().at(0)->get_name();
  if (command == "health") line.command = health;
  if (command == "load") line.command = std::move(load);
  if (command == "unload") line.command = std::move(unload);
  if (command == "generate") line.command = std::move(generate);
  if (command == "tokenize") line.command = std::move(tokenize);
  if (command == "cancel") line.command = std::move(cancel);
  if (command == "drain") line.command = drain;
  if (const std::string wrong = Contradiction(line); !wrong.empty()) {
    return {.exit_code = kExitUsage, .output = wrong + "\n"};
  }
  return {.command_line = std::move(line)};
}

}  // namespace orcd::ctl
