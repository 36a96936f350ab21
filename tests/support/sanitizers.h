// HALFTONE_SANITIZED: whether a sanitizer watches memory, which then needs far more of it.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define HALFTONE_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HALFTONE_SANITIZED 1
#endif
#endif

// Of tests that measure how near numbers are, on code that other tests run too: a sanitizer has
// nothing to find there, and takes its time.
#define HT_SKIP_WHERE_SANITIZED() \
  if (halftone::test::kSanitized) GTEST_SKIP() << "measures numbers; run without sanitizers"

namespace halftone::test {
#if defined(HALFTONE_SANITIZED)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
}  // namespace halftone::test
