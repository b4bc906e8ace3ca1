#include "worker/security/authorizer.h"

#include <openssl/sha.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/error.h"
#include "worker/security/guard/connection_filter.h"

namespace orcd {
namespace {

// Shorter tokens can be guessed.
constexpr size_t kMinTokenBytes = 16;
constexpr std::string_view kScheme = "bearer ";

constexpr char kAdvice[] =
    "each line is `inference TOKEN`, `control TOKEN` or `inference,control TOKEN`, or begins with "
    "#; one line that does allows no token at all";

absl::Status BadTokenFile(const std::string& path, const std::string& what) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat(path, ": ", what, "; ", kAdvice),
                   {.reason = "TOKEN_FILE_INVALID", .subject = path});
}

absl::Status Unauthenticated(std::string_view why) {
  return MakeError(absl::StatusCode::kUnauthenticated,
                   absl::StrCat(std::string(why),
                                "; show a client certificate or a bearer token in the header "
                                "`authorization` that this worker knows"),
                   {.reason = "UNAUTHENTICATED"});
}

std::string_view NameOf(Permission permission) {
  switch (permission) {
    case Permission::kStatus:
      return "status";
    case Permission::kInference:
      return "inference";
    case Permission::kControl:
      return "control";
  }
  return "";
}

bool Contains(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Authorizer>> Authorizer::Create(Options options,
                                                               FileWatcher& watcher) {
  std::optional<LastGood<Tokens>> tokens;
  if (const std::string& path = options.token_file; !path.empty()) {
    ORCD_ASSIGN_OR_RETURN(
        tokens, LastGood<Tokens>::Watch(
                    watcher, {.paths = {path}, .reason = "TOKEN_FILE_INVALID", .advice = kAdvice},
                    [path](const std::vector<std::string>& contents) {
                      return ParseTokens(path, contents[0]);
                    }));
  }
  return std::unique_ptr<Authorizer>(new Authorizer(std::move(options), std::move(tokens)));
}

Authorizer::Authorizer(Options options, std::optional<LastGood<Tokens>> tokens)
    : options_(std::move(options)),
      open_(!options_.client_certificates && options_.token_file.empty()),
      tokens_(std::move(tokens)) {}

absl::StatusOr<std::shared_ptr<const Authorizer::Tokens>> Authorizer::ParseTokens(
    const std::string& path, const std::string& content) {
  auto tokens = std::make_shared<Tokens>();
  int number = 0;
  bool is_blank = true;
  for (const absl::string_view line : absl::StrSplit(content, '\n')) {
    ++number;
    const std::string text(absl::StripAsciiWhitespace(line));
    if (text.empty()) continue;
    is_blank = false;
    if (text[0] == '#') continue;
    const std::vector<std::string> words =
        absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    // The error names the line only: the line holds a secret.
    const auto bad = [&](std::string_view what) {
      return BadTokenFile(path, absl::StrCat("line ", number, " ", std::string(what)));
    };
    if (words.size() != 2) return bad("has not two words");
    if (words[1].size() < kMinTokenBytes) {
      return bad(absl::StrCat("has a token of less than ", kMinTokenBytes, " bytes"));
    }
    Grant grant;
    for (const std::string& role : std::vector<std::string>(absl::StrSplit(words[0], ','))) {
      if (role == "inference") {
        grant.inference = true;
      } else if (role == "control") {
        grant.control = true;
      } else {
        return bad("has another permission than inference and control");
      }
    }
    Digest digest;
    SHA256(reinterpret_cast<const uint8_t*>(words[1].data()), words[1].size(), digest.data());
    (*tokens)[digest] = grant;
  }
  if (is_blank) return BadTokenFile(path, "has blank lines alone");
  return tokens;
}

absl::Status Authorizer::Check(const grpc::ServerContextBase& context,
                               Permission permission) const {
  if (open_) return absl::OkStatus();
  Caller caller;
  const auto& metadata = context.client_metadata();
  if (options_.client_certificates) {
    // The connection guard has verified these names, and lets no client send such headers.
    const auto [begin, end] = metadata.equal_range(
        grpc::string_ref(guard::kPeerNameHeader.data(), guard::kPeerNameHeader.size()));
    for (auto name = begin; name != end; ++name) {
      caller.names.emplace_back(name->second.data(), name->second.size());
    }
  }
  if (const auto header = metadata.find("authorization"); header != metadata.end()) {
    caller.authorization = {header->second.data(), header->second.size()};
  }
  return Check(caller, permission);
}

absl::Status Authorizer::CheckKnown(std::string_view method, std::string_view authorization,
                                    const std::vector<std::string>& names) const {
  // Probes have no credentials; channelz is protected by its own gate.
  if (open_ || method.starts_with("/grpc.")) return absl::OkStatus();
  Caller caller = {.names = {}, .authorization = authorization};
  if (options_.client_certificates) caller.names = names;
  return Check(caller, Permission::kStatus);
}

absl::Status Authorizer::Check(const Caller& caller, Permission permission) const {
  if (open_) return absl::OkStatus();
  Grant grant = GrantOfNames(caller.names);
  bool known = !caller.names.empty();
  if (!caller.authorization.empty() && !options_.token_file.empty()) {
    if (!absl::StartsWithIgnoreCase(
            absl::string_view(caller.authorization.data(), caller.authorization.size()),
            absl::string_view(kScheme.data(), kScheme.size()))) {
      return Unauthenticated("the header `authorization` is no bearer token");
    }
    if (!FindToken(caller.authorization.substr(kScheme.size()), grant)) {
      return Unauthenticated("this bearer token is not known");
    }
    known = true;
  }
  if (!known) return Unauthenticated("the caller is not known");
  const bool may = permission == Permission::kStatus ||
                   (permission == Permission::kInference ? grant.inference : grant.control);
  if (may) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kPermissionDenied,
      absl::StrCat("this caller has no permission for ", std::string(NameOf(permission)),
                   "; ask for it to be named for that, or use another identity"),
      {.reason = "PERMISSION_DENIED", .subject = std::string(NameOf(permission))});
}

Authorizer::Grant Authorizer::GrantOfNames(const std::vector<std::string>& names) const {
  Grant grant;
  if (names.empty()) return grant;
  if (options_.inference_clients.empty() && options_.control_clients.empty() &&
      options_.token_file.empty()) {
    return {.inference = true, .control = true};
  }
  for (const std::string& name : names) {
    if (Contains(options_.inference_clients, name)) grant.inference = true;
    if (Contains(options_.control_clients, name)) grant.control = true;
  }
  return grant;
}

bool Authorizer::FindToken(std::string_view token, Grant& grant) const {
  // Compares digests, so that the time it takes reveals nothing about the tokens.
  Digest digest;
  SHA256(reinterpret_cast<const uint8_t*>(token.data()), token.size(), digest.data());
  const std::shared_ptr<const Tokens> tokens = tokens_->Get();
  const auto found = tokens->find(digest);
  if (found == tokens->end()) return false;
  grant.inference |= found->second.inference;
  grant.control |= found->second.control;
  return true;
}

}  // namespace orcd
