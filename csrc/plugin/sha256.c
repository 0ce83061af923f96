#include "sha256.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__) && !defined(SHA256_PORTABLE)
#define HAS_X86_ROUNDS
#include <cpuid.h>
#include <immintrin.h>
#endif

enum { BLOCK_BYTES = 64, LENGTH_BYTES = 8, ROUNDS = 64 };

/* FIPS 180-4, 4.2.2: the first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_constants[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t word, int bits) {
    return word >> bits | word << (32 - bits);
}

static uint32_t big_endian(const unsigned char *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* 6.2.2, one block. */
static void compress(uint32_t state[8], const unsigned char *block) {
    uint32_t schedule[ROUNDS];
    for (int t = 0; t < 16; t++) {
        schedule[t] = big_endian(block + 4 * t);
    }
    for (int t = 16; t < ROUNDS; t++) {
        uint32_t w2 = schedule[t - 2], w15 = schedule[t - 15];
        schedule[t] = (rotate(w2, 17) ^ rotate(w2, 19) ^ w2 >> 10) + schedule[t - 7] +
                      (rotate(w15, 7) ^ rotate(w15, 18) ^ w15 >> 3) + schedule[t - 16];
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < ROUNDS; t++) {
        uint32_t t1 = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + round_constants[t] +
                      schedule[t];
        uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1;
        d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

#ifdef HAS_X86_ROUNDS
static bool has_rounds(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
}

/* The same by the processor's own instructions, four rounds at a time: half of what a communicator with a large table
 * would wait for at init is this hash. */
__attribute__((target("sha,sse4.1"))) static void compress_x86(uint32_t state[8], const unsigned char *block) {
    const __m128i big_endian_words = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i words[ROUNDS / 4], feba, hgdc; /* of the first letter in the lowest lane */
    feba = _mm_set_epi32((int)state[0], (int)state[1], (int)state[4], (int)state[5]);
    hgdc = _mm_set_epi32((int)state[2], (int)state[3], (int)state[6], (int)state[7]);
    for (int t = 0; t < ROUNDS / 4; t++) {
        if (t < 4) {
            words[t] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)block + t), big_endian_words);
        } else {
            __m128i w7 = _mm_alignr_epi8(words[t - 1], words[t - 2], 4);
            __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(words[t - 4], words[t - 3]), w7);
            words[t] = _mm_sha256msg2_epu32(sum, words[t - 1]);
        }
        __m128i constants = _mm_loadu_si128((const __m128i *)(const void *)round_constants + t);
        __m128i input = _mm_add_epi32(words[t], constants);
        hgdc = _mm_sha256rnds2_epu32(hgdc, feba, input);
        feba = _mm_sha256rnds2_epu32(feba, hgdc, _mm_shuffle_epi32(input, 0x0e));
    }
    uint32_t low[4], high[4];
    _mm_storeu_si128((__m128i *)(void *)low, feba);
    _mm_storeu_si128((__m128i *)(void *)high, hgdc);
    state[0] += low[3], state[1] += low[2], state[2] += high[3], state[3] += high[2];
    state[4] += low[1], state[5] += low[0], state[6] += high[1], state[7] += high[0];
}
#endif

typedef void (*compressor)(uint32_t state[8], const unsigned char *block);

static compressor choose(void) {
#ifdef HAS_X86_ROUNDS
    if (has_rounds()) {
        return compress_x86;
    }
#endif
    return compress;
}

struct hash sha256_of(struct slice content) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    compressor add = choose();
    size_t whole = content.length / BLOCK_BYTES * BLOCK_BYTES, left = content.length - whole;
    for (size_t at = 0; at < whole; at += BLOCK_BYTES) {
        add(state, (const unsigned char *)content.start + at);
    }
    /* 5.1.1: what is left, a one bit, zeros, the length in bits; in one block or two. */
    unsigned char tail[2 * BLOCK_BYTES] = {0};
    if (left > 0) {
        memcpy(tail, content.start + whole, left);
    }
    tail[left] = 0x80;
    size_t end = left + 1 + LENGTH_BYTES <= BLOCK_BYTES ? BLOCK_BYTES : 2 * BLOCK_BYTES;
    uint64_t bits = (uint64_t)content.length * 8;
    for (size_t i = 1; i <= LENGTH_BYTES; i++, bits >>= 8) {
        tail[end - i] = (unsigned char)bits;
    }
    for (size_t at = 0; at < end; at += BLOCK_BYTES) {
        add(state, tail + at);
    }
    struct hash hash;
    for (int word = 0; word < 8; word++) {
        snprintf(hash.text + 8 * word, sizeof hash.text - 8 * (size_t)word, "%08x", (unsigned)state[word]);
    }
    return hash;
}
