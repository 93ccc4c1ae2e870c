/* The chain of block hashes under `sha256` and `sha256_cbor`: encodes each block and digests it.
 *
 * The twin of `router/kv/hashes.py`, which says what is hashed. The interpreter's lock is given up meanwhile.
 * SHA-256 (FIPS 180-4) is here because a block is two rounds of it: calling a library for each would cost more than the
 * digest. Where the processor has instructions for it (x86) they are used.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#define HAS_X86 1
#endif

#define DIGEST 32
#define LONGEST_ID 11 /* bytes of an encoded id: pickle's, for 64 bits */

static const uint32_t K[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};
static const uint32_t START[8] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

static uint32_t turned(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

static void put_be32(unsigned char *at, uint32_t x)
{
    for (int place = 0; place < 4; place++)
        at[place] = (unsigned char)(x >> (24 - 8 * place));
}

static void compress_plain(uint32_t state[8], const unsigned char *data, size_t blocks)
{
    uint32_t w[64];
    for (; blocks; blocks--, data += 64) {
        for (int i = 0; i < 16; i++)
            w[i] = (uint32_t)data[4 * i] << 24 | (uint32_t)data[4 * i + 1] << 16 | (uint32_t)data[4 * i + 2] << 8 |
                   data[4 * i + 3];
        for (int i = 16; i < 64; i++)
            w[i] = (turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10) + w[i - 7] +
                   (turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 16];
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
        for (int i = 0; i < 64; i++) {
            uint32_t first = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i];
            uint32_t second = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + first;
            d = c, c = b, b = a, a = first + second;
        }
        state[0] += a, state[1] += b, state[2] += c, state[3] += d;
        state[4] += e, state[5] += f, state[6] += g, state[7] += h;
    }
}

#ifdef HAS_X86
/* The instructions want the state as (a, b, e, f) and (c, d, g, h), highest first, and do two rounds each. */
__attribute__((target("sha,sse4.1"))) static void compress_x86(uint32_t state[8], const unsigned char *data,
                                                                size_t blocks)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);
    __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(abcd, efgh, 8), cdgh = _mm_blend_epi16(efgh, abcd, 0xf0);
    for (; blocks; blocks--, data += 64) {
        __m128i w[4], before0 = abef, before1 = cdgh;
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            if (i < 4) {
                w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * i)), swap);
            } else {
                __m128i last = w[(i + 3) & 3];
                __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]),
                                            _mm_alignr_epi8(last, w[(i + 2) & 3], 4));
                w[i & 3] = _mm_sha256msg2_epu32(sum, last);
            }
            __m128i words = _mm_add_epi32(w[i & 3], _mm_load_si128((const __m128i *)(K + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, words);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(words, 0x0e));
        }
        abef = _mm_add_epi32(abef, before0);
        cdgh = _mm_add_epi32(cdgh, before1);
    }
    __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

static int has_instructions(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSE4_1) || !(c & bit_SSSE3))
        return 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 29);
}
#endif

typedef void (*Compress)(uint32_t state[8], const unsigned char *data, size_t blocks);
static Compress fastest = compress_plain;

/* Pad a message in place (there is room) and digest it. */
static void sha256(Compress compress, unsigned char *message, size_t length, unsigned char digest[DIGEST])
{
    uint32_t state[8];
    memcpy(state, START, sizeof state);
    size_t padded = (length + 8) / 64 * 64 + 64;
    memset(message + length, 0, padded - length);
    message[length] = 0x80;
    put_be32(message + padded - 8, (uint32_t)((uint64_t)length >> 29));
    put_be32(message + padded - 4, (uint32_t)(length << 3));
    compress(state, message, padded / 64);
    for (int place = 0; place < 8; place++)
        put_be32(digest + 4 * place, state[place]);
}

/* The head of a CBOR item in its shortest form (RFC 8949, 4.2.1). */
static unsigned char *cbor_head(unsigned char *at, int major, uint64_t value)
{
    int bytes = value < 24 ? 0 : value <= UINT8_MAX ? 1 : value <= UINT16_MAX ? 2 : value <= UINT32_MAX ? 4 : 8;
    *at++ = (unsigned char)(major | (bytes == 0 ? (int)value : bytes == 1 ? 24 : bytes == 2 ? 25 : bytes == 4 ? 26 : 27));
    while (bytes--)
        *at++ = (unsigned char)(value >> (8 * bytes));
    return at;
}

/* A number as pickle writes it from protocol 2 on: BININT1, BININT2, BININT, LONG1. */
static unsigned char *pickle_number(unsigned char *at, uint64_t value)
{
    int bytes = value <= UINT8_MAX ? 1 : value <= UINT16_MAX ? 2 : 4;
    *at++ = bytes == 1 ? 'K' : bytes == 2 ? 'M' : 'J';
    if (value > INT32_MAX) {
        at[-1] = 0x8a;
        for (bytes = 1; bytes < 9 && value >> (8 * bytes - 1); bytes++)
            ;
        *at++ = (unsigned char)bytes;
    }
    for (int place = 0; place < bytes; place++)
        *at++ = place < 8 ? (unsigned char)(value >> (8 * place)) : 0;
    return at;
}

/* What is hashed of every block, but for the parent and the ids. */
typedef struct {
    int pickles;
    const unsigned char *ids;
    Py_ssize_t item_bytes, block_size;
    const unsigned char *tail;
    size_t tail_bytes;
    Compress compress;
} Plan;

static uint64_t id_at(const Plan *plan, Py_ssize_t place)
{
    uint32_t narrow;
    uint64_t wide;
    if (plan->item_bytes == 4)
        return memcpy(&narrow, plan->ids + 4 * place, 4), narrow;
    return memcpy(&wide, plan->ids + 8 * place, 8), wide;
}

/* (parent, ids, tail) as CBOR or as pickle of protocol 5; returns its length. */
static size_t encode(const Plan *plan, unsigned char *message, const unsigned char *parent, Py_ssize_t first)
{
    unsigned char *at = message;
    Py_ssize_t size = plan->block_size;
    if (plan->pickles) {
        memcpy(at, "\x80\x05\x95", 3);
        at += 11; /* the frame's length comes last */
        *at++ = 'C', *at++ = DIGEST;
    } else {
        *at++ = 0x83, *at++ = 0x58, *at++ = DIGEST;
    }
    memcpy(at, parent, DIGEST);
    at += DIGEST;
    if (plan->pickles) {
        *at++ = 0x94; /* memoised */
        if (size > 3)
            *at++ = '(';
        for (Py_ssize_t place = first; place < first + size; place++)
            at = pickle_number(at, id_at(plan, place));
        *at++ = size > 3 ? 't' : (unsigned char)(0x84 + size);
        *at++ = 0x94;
    } else {
        at = cbor_head(at, 0x80, (uint64_t)size);
        for (Py_ssize_t place = first; place < first + size; place++)
            at = cbor_head(at, 0, id_at(plan, place));
    }
    memcpy(at, plan->tail, plan->tail_bytes);
    at += plan->tail_bytes;
    size_t length = (size_t)(at - message);
    if (plan->pickles)
        for (int place = 0; place < 8; place++)
            message[3 + place] = (unsigned char)((uint64_t)(length - 11) >> (8 * place));
    return length;
}

static PyObject *listed(const unsigned char *digests, Py_ssize_t blocks)
{
    PyObject *list = PyList_New(blocks);
    for (Py_ssize_t place = 0; list && place < blocks; place++) {
        PyObject *digest = PyBytes_FromStringAndSize((const char *)digests + DIGEST * place, DIGEST);
        if (!digest)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, place, digest);
    }
    return list;
}

static PyObject *sha256_chain(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer ids, parent, tail;
    Py_ssize_t first, size;
    int pickles, plain = 0;
    if (!PyArg_ParseTuple(args, "y*nny*py*|p", &ids, &first, &size, &parent, &pickles, &tail, &plain))
        return NULL;
    PyObject *result = NULL;
    unsigned char *digests = NULL, *message = NULL;
    Py_ssize_t items = ids.itemsize == 4 || ids.itemsize == 8 ? ids.len / ids.itemsize : -1;
    if (items < 0 || parent.len != DIGEST || size < 1 || first < 0 || first > items) {
        PyErr_SetString(PyExc_ValueError, "ids have 32 or 64 bits, a parent 32 bytes, a block one id or more");
        goto done;
    }
    Plan plan = {pickles, ids.buf, ids.itemsize, size, tail.buf, (size_t)tail.len, plain ? compress_plain : fastest};
    Py_ssize_t blocks = (items - first) / size;
    digests = PyMem_Malloc((size_t)(blocks + 1) * DIGEST);
    message = blocks ? PyMem_Malloc((size_t)size * LONGEST_ID + (size_t)tail.len + 256) : NULL;
    if (!digests || (blocks && !message)) {
        PyErr_NoMemory();
        goto done;
    }
    memcpy(digests, parent.buf, DIGEST);
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t block = 0; block < blocks; block++) {
        size_t length = encode(&plan, message, digests + DIGEST * block, first + block * size);
        sha256(plan.compress, message, length, digests + DIGEST * (block + 1));
    }
    Py_END_ALLOW_THREADS
    result = listed(digests + DIGEST, blocks);
done:
    PyMem_Free(digests);
    PyMem_Free(message);
    PyBuffer_Release(&ids);
    PyBuffer_Release(&parent);
    PyBuffer_Release(&tail);
    return result;
}

static PyMethodDef methods[] = {
    {"sha256_chain", sha256_chain, METH_VARARGS,
     "sha256_chain(ids, first, block_size, parent, pickles, tail, plain=False) -> the digest of each full block from\n"
     "the id `first` on. `tail` is what the encoding has after a block's ids; `plain` keeps to portable C."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "chain", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit_chain(void)
{
#ifdef HAS_X86
    if (has_instructions())
        fastest = compress_x86;
#endif
    return PyModule_Create(&module);
}
