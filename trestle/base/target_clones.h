#pragma once

// A loop over plain arrays, compiled for AVX2 and for any processor; the program's start chooses.
// Compile its source with -ffp-contract=off, so that every processor computes the same bits.
// Sanitizers cannot start with the resolvers of target_clones. Not installed.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TRESTLE_CLONES __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define TRESTLE_CLONES
#endif
