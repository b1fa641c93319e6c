// The instructions of x86 processors, by name, where this is one: HWY_ARCH_X86_64 says so.
#pragma once

#include <hwy/base.h>

#if HWY_ARCH_X86_64
#if !defined(__clang__)  // GCC 12 takes the undefined halves in its own header for mistakes
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif
