// The C functions of the constraint library: its own, and those of tools/llguidance/src/lib.rs.
#ifndef ORCD_RUNTIME_CONSTRAINT_LLG_LIBRARY_H_
#define ORCD_RUNTIME_CONSTRAINT_LLG_LIBRARY_H_

#include <cstddef>
#include <cstdint>

#include "llguidance.h"

extern "C" {

// The result of a call: bytes allocated less those freed, and the bound that stopped it (0: none,
// 1: the call's bytes, 2: those of the whole library, 3: time).
struct OrcdUse {
  int64_t bytes;
  int32_t stop;
};

// A call of this thread, which must have none: between these two, an allocation past a bound fails
// the function that needs it. INT64_MAX: no bound.
void orcd_llg_begin(int64_t most_bytes, int64_t most_held, int64_t most_nanoseconds);
OrcdUse orcd_llg_end();
// The bytes that the library holds.
int64_t orcd_llg_held();

// Sets of tokens that make masks fast. The tokenizer must outlive them.
struct OrcdTokens;
OrcdTokens* orcd_tokens_new(const LlgTokenizer* tokenizer);
void orcd_tokens_free(OrcdTokens* tokens);

// A rule's state; lib.rs documents each function.
struct OrcdMatcher;
OrcdMatcher* orcd_matcher_new(const LlgConstraintInit* init, const OrcdTokens* tokens,
                              const uint8_t* kind, size_t kind_size, const uint8_t* text,
                              size_t text_size);
OrcdMatcher* orcd_matcher_clone(const OrcdMatcher* matcher);
void orcd_matcher_free(OrcdMatcher* matcher);
const char* orcd_matcher_error(OrcdMatcher* matcher);
bool orcd_matcher_mask(OrcdMatcher* matcher, uint32_t* words, size_t count);
int64_t orcd_matcher_forced(OrcdMatcher* matcher, uint32_t* ids, size_t room);
bool orcd_matcher_accept(OrcdMatcher* matcher, uint32_t token);
bool orcd_matcher_rollback(OrcdMatcher* matcher, size_t count);
bool orcd_matcher_is_stopped(const OrcdMatcher* matcher);
bool orcd_matcher_is_accepting(OrcdMatcher* matcher);

}  // extern "C"

#endif  // ORCD_RUNTIME_CONSTRAINT_LLG_LIBRARY_H_
