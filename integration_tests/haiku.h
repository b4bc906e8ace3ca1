// The haiku prompt and the rule that judges answers to it.
#ifndef ORCD_INTEGRATION_TESTS_HAIKU_H_
#define ORCD_INTEGRATION_TESTS_HAIKU_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "integration_tests/worker_client.h"
#include "nlohmann/json.hpp"
#include "orcd/v1/worker.pb.h"

namespace orcd::testing {

// A minute of the hour in English words: "zero" to "fifty-nine".
std::string MinuteInWords(int minute);

// Eight characters of a-z and 0-9, a function of `seed`.
std::string Nonce(uint64_t seed);

std::string HaikuPrompt(std::string_view word, std::string_view nonce);

// Occurrences of `word` in `text` that no letter or hyphen precedes or follows; ignores case.
int CountWholeWord(std::string_view text, std::string_view word);

// The prompt as a chat request at temperature 0.7, at most 100 new tokens.
v1::GenerateRequest HaikuRequest(const std::string& prompt, uint64_t seed);

// An attempt's seed, text, finish reason, usage and timings, for the artefacts.
nlohmann::json Describe(const Generation& generation);

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_HAIKU_H_
