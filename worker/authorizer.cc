#include "worker/authorizer.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>
#include <openssl/sha.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/error.h"
#include "runtime/steady_time.h"

namespace orcd {
namespace {

constexpr absl::Duration kLookEvery = absl::Milliseconds(500);
// Shorter ones can be guessed.
constexpr size_t kMinTokenBytes = 16;
constexpr std::string_view kScheme = "bearer ";

absl::Status BadTokenFile(const std::string& path, const std::string& what) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat(path, ": ", what,
                                "; each line is `inference TOKEN`, `control TOKEN` or "
                                "`inference,control TOKEN`"),
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

absl::StatusOr<std::unique_ptr<Authorizer>> Authorizer::Create(Options options, const Logger& log) {
  std::unique_ptr<Authorizer> authorizer(new Authorizer(std::move(options), log));
  const std::string& path = authorizer->options_.token_file;
  if (!path.empty()) {
    std::lock_guard lock(authorizer->mutex_);
    authorizer->version_ = VersionOf(path);
    ORCD_ASSIGN_OR_RETURN(authorizer->tokens_, ReadTokens(path));
    authorizer->looked_ = SteadyNow();
  }
  return authorizer;
}

Authorizer::Authorizer(Options options, const Logger& log)
    : options_(std::move(options)),
      log_(log),
      open_(!options_.client_certificates && options_.token_file.empty()) {}

absl::StatusOr<Authorizer::Tokens> Authorizer::ReadTokens(const std::string& path) {
  std::ifstream file(path);
  if (!file) return BadTokenFile(path, "cannot be read");
  Tokens tokens;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const std::string text(absl::StripAsciiWhitespace(line));
    if (text.empty() || text[0] == '#') continue;
    const std::vector<std::string> words =
        absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    // What is wrong is named by its line alone: the line holds a secret.
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
    tokens[digest] = grant;
  }
  if (file.bad()) return BadTokenFile(path, "cannot be read to its end");
  return tokens;
}

Authorizer::Version Authorizer::VersionOf(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return {};
  return {.modified_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec,
          .size = info.st_size,
          .inode = info.st_ino};
}

void Authorizer::RefreshLocked() const {
  const absl::Time now = SteadyNow();
  if (now - looked_ < kLookEvery) return;
  looked_ = now;
  const Version version = VersionOf(options_.token_file);
  if (version == version_) return;
  absl::StatusOr<Tokens> tokens = ReadTokens(options_.token_file);
  if (!tokens.ok()) {
    // It is tried again at each look: rights or descriptors may be there the next time.
    if (!std::exchange(told_, true)) {
      log_.Warning("the tokens stay as they were",
                   {{"error", std::string(tokens.status().message())}});
    }
    return;
  }
  version_ = version;
  told_ = false;
  tokens_ = *std::move(tokens);
  log_.Info("tokens read again", {{"tokens", tokens_.size()}});
}

absl::Status Authorizer::Check(const grpc::ServerContextBase& context,
                               Permission permission) const {
  if (open_) return absl::OkStatus();
  Caller caller;
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (options_.client_certificates && auth != nullptr && auth->IsPeerAuthenticated()) {
    for (const char* property : {GRPC_X509_CN_PROPERTY_NAME, GRPC_X509_SAN_PROPERTY_NAME}) {
      for (const grpc::string_ref& name : auth->FindPropertyValues(property)) {
        caller.names.emplace_back(name.data(), name.size());
      }
    }
  }
  const auto& metadata = context.client_metadata();
  if (const auto header = metadata.find("authorization"); header != metadata.end()) {
    caller.authorization = {header->second.data(), header->second.size()};
  }
  return Check(caller, permission);
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
  // What is compared are digests: how long it takes tells nothing of the tokens.
  Digest digest;
  SHA256(reinterpret_cast<const uint8_t*>(token.data()), token.size(), digest.data());
  std::lock_guard lock(mutex_);
  RefreshLocked();
  const auto found = tokens_.find(digest);
  if (found == tokens_.end()) return false;
  grant.inference |= found->second.inference;
  grant.control |= found->second.control;
  return true;
}

}  // namespace orcd
