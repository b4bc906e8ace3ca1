#include "integration_tests/haiku.h"

#include <cctype>
#include <random>

#include "absl/strings/str_cat.h"

namespace orcd::testing {

std::string MinuteInWords(int minute) {
  constexpr const char* kSmall[] = {"zero",    "one",     "two",       "three",    "four",
                                    "five",    "six",     "seven",     "eight",    "nine",
                                    "ten",     "eleven",  "twelve",    "thirteen", "fourteen",
                                    "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
  constexpr const char* kTens[] = {"twenty", "thirty", "forty", "fifty"};
  if (minute < 20) return kSmall[minute];
  const std::string tens = kTens[minute / 10 - 2];
  return minute % 10 == 0 ? tens : absl::StrCat(tens, "-", kSmall[minute % 10]);
}

std::string Nonce(uint64_t seed) {
  constexpr std::string_view kAlphabet = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::mt19937_64 random(seed);
  std::string nonce(8, ' ');
  for (char& c : nonce) c = kAlphabet[random() % kAlphabet.size()];
  return nonce;
}

std::string HaikuPrompt(std::string_view word, std::string_view nonce) {
  std::string prompt = "Write a haiku about GPU computing that includes the word \"";
  prompt += word;
  prompt += "\" (nonce: ";
  prompt += nonce;
  prompt += ')';
  return prompt;
}

int CountWholeWord(std::string_view text, std::string_view word) {
  const auto lower = [](std::string_view s) {
    std::string result(s);
    for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return result;
  };
  const std::string haystack = lower(text);
  const std::string needle = lower(word);
  const auto joins = [&](size_t pos) {
    if (pos >= haystack.size()) return false;
    // A byte of a non-ASCII character counts as a letter.
    const auto c = static_cast<unsigned char>(haystack[pos]);
    return std::isalpha(c) != 0 || c == '-' || c >= 0x80;
  };
  int count = 0;
  for (size_t pos = haystack.find(needle); pos != std::string::npos;
       pos = haystack.find(needle, pos + 1)) {
    if ((pos == 0 || !joins(pos - 1)) && !joins(pos + needle.size())) ++count;
  }
  return count;
}

v1::GenerateRequest HaikuRequest(const std::string& prompt, uint64_t seed) {
  v1::GenerateRequest request = ChatRequest(prompt, 100);
  request.mutable_sampling()->set_temperature(0.7f);
  request.mutable_sampling()->set_seed(seed);
  return request;
}

nlohmann::json Describe(const Generation& generation) {
  const auto milliseconds = [](const google::protobuf::Duration& duration) {
    return duration.seconds() * 1e3 + duration.nanos() * 1e-6;
  };
  nlohmann::json json;
  json["status"] = {{"code", static_cast<int>(generation.error.code)},
                    {"message", generation.error.message}};
  json["text"] = generation.text;
  json["ids"] = generation.ids;
  if (generation.started) json["seed"] = generation.started->seed();
  if (generation.finished) {
    const v1::GenerateFinished& finished = *generation.finished;
    json["reason"] = v1::FinishReason_Name(finished.reason());
    json["prompt_tokens"] = finished.usage().prompt_tokens();
    json["generated_tokens"] = finished.usage().generated_tokens();
    json["queue_ms"] = milliseconds(finished.timings().queue());
    json["prefill_ms"] = milliseconds(finished.timings().prefill());
    json["decode_ms"] = milliseconds(finished.timings().decode());
    json["model_digest"] = finished.model_digest();
  }
  return json;
}

}  // namespace orcd::testing
