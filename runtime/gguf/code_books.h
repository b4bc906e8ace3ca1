// The code books of the I-quants. An entry is a group of 8 or 4 weights: entry >> 2i & 3 (IQ1, IQ2)
// or entry >> 4i & 7 (IQ3) is an index of the type's levels (blocks_iq.h). Device code may read them
// as well, from global memory.
#ifndef ORCD_RUNTIME_GGUF_CODE_BOOKS_H_
#define ORCD_RUNTIME_GGUF_CODE_BOOKS_H_

#include <cstdint>

namespace orcd {

namespace host_code_books {
#define ORCD_CODE_BOOK inline constexpr
#include "runtime/gguf/code_books.inc"
#undef ORCD_CODE_BOOK
}  // namespace host_code_books

#if defined(__CUDACC__)
namespace device_code_books {
#define ORCD_CODE_BOOK [[maybe_unused]] static __device__ constexpr
#include "runtime/gguf/code_books.inc"
#undef ORCD_CODE_BOOK
}  // namespace device_code_books
#endif

// The books that can be read where the code runs.
#if defined(__CUDA_ARCH__)
namespace code_books = device_code_books;
#else
namespace code_books = host_code_books;
#endif

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_CODE_BOOKS_H_
