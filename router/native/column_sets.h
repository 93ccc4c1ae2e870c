/* Sets of columns, each kept once: what the blocks of an index point at.
 *
 * A set is as many 64-bit words as the highest column needs. Thousands of blocks share one set, so a block costs a
 * 32-bit id. A set is counted by the blocks that point at it and its id is used again when the last one leaves. Id 0 is
 * the empty set: no block points at it.
 */
#ifndef WARMROUTE_COLUMN_SETS_H
#define WARMROUTE_COLUMN_SETS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NO_SET 0u

typedef struct {
    uint32_t words;      /* of each set */
    uint32_t count;      /* ids given out so far, the free ones too */
    uint32_t capacity;   /* ids that there is room for */
    uint32_t free;       /* the first free id; the next is in its `next` */
    uint32_t live;       /* sets in use */
    uint32_t buckets;    /* a power of two, or 0 */
    uint64_t *bits;      /* capacity * words */
    uint32_t *blocks;    /* how many point at each */
    uint32_t *next;      /* chain of its bucket, or of free ids */
    uint32_t *heads;     /* by bucket */
} ColumnSets;

static inline const uint64_t *set_bits(const ColumnSets *sets, uint32_t id) {
    return sets->bits + (size_t)id * sets->words;
}

static inline int set_has(const ColumnSets *sets, uint32_t id, uint32_t column) {
    return column / 64 < sets->words && set_bits(sets, id)[column / 64] >> (column % 64) & 1;
}

/* Words of zeros at the end change nothing: sets that are widened stay where they are. */
static uint64_t bits_hash(const uint64_t *bits, uint32_t words) {
    uint64_t hash = 0;
    for (uint32_t i = 0; i < words; i++) {
        if (bits[i]) {
            hash = (hash ^ bits[i] ^ i) * 0x9E3779B97F4A7C15u;
            hash ^= hash >> 32;
        }
    }
    return hash;
}

static void sets_free(ColumnSets *sets) {
    free(sets->bits);
    free(sets->blocks);
    free(sets->next);
    free(sets->heads);
    memset(sets, 0, sizeof *sets);
}

static void sets_link(ColumnSets *sets, uint32_t id) {
    uint32_t bucket = bits_hash(set_bits(sets, id), sets->words) & (sets->buckets - 1);
    sets->next[id] = sets->heads[bucket];
    sets->heads[bucket] = id;
}

/* Hash all live sets into `buckets` buckets. Returns 0 without memory, with nothing changed. */
static int sets_rehash(ColumnSets *sets, uint32_t buckets) {
    uint32_t *heads = calloc(buckets, sizeof *heads);
    if (heads == NULL)
        return 0;
    free(sets->heads);
    sets->heads = heads;
    sets->buckets = buckets;
    for (uint32_t id = 1; id < sets->count; id++)
        if (sets->blocks[id])
            sets_link(sets, id);
    return 1;
}

/* Make room for one more id. Returns 0 without memory. */
static int sets_grow(ColumnSets *sets) {
    uint32_t capacity = sets->capacity ? sets->capacity * 2 : 16;
    uint64_t *bits = realloc(sets->bits, (size_t)capacity * sets->words * sizeof *bits);
    if (bits == NULL)
        return 0;
    sets->bits = bits;
    uint32_t *blocks = realloc(sets->blocks, capacity * sizeof *blocks);
    if (blocks == NULL)
        return 0;
    sets->blocks = blocks;
    uint32_t *next = realloc(sets->next, capacity * sizeof *next);
    if (next == NULL)
        return 0;
    sets->next = next;
    sets->capacity = capacity;
    return sets_rehash(sets, capacity);
}

/* Give every set room for a column. Returns 0 without memory. */
static int sets_widen(ColumnSets *sets, uint32_t column) {
    uint32_t words = column / 64 + 1;
    if (words <= sets->words)
        return 1;
    uint64_t *wide = calloc((size_t)(sets->capacity ? sets->capacity : 1) * words, sizeof *wide);
    if (wide == NULL)
        return 0;
    for (uint32_t id = 0; id < sets->count; id++)
        memcpy(wide + (size_t)id * words, set_bits(sets, id), sets->words * sizeof *wide);
    free(sets->bits);
    sets->bits = wide;
    sets->words = words;
    if (sets->count == 0) {
        if (!sets_grow(sets))
            return 0;
        memset(sets->bits, 0, words * sizeof *wide); /* the empty set */
        sets->blocks[NO_SET] = 0;
        sets->count = 1;
    }
    return 1;
}

/* Count one more block for the set of these bits (not all 0), made where there is none. Returns NO_SET without memory.
 * `bits` is no part of the table. */
static uint32_t sets_take(ColumnSets *sets, const uint64_t *bits) {
    size_t bytes = sets->words * sizeof *bits;
    uint32_t id = sets->heads[bits_hash(bits, sets->words) & (sets->buckets - 1)];
    while (id != NO_SET && memcmp(set_bits(sets, id), bits, bytes) != 0)
        id = sets->next[id];
    if (id != NO_SET) {
        sets->blocks[id]++;
        return id;
    }
    if (sets->free != NO_SET) {
        id = sets->free;
        sets->free = sets->next[id];
    } else {
        if (sets->count == sets->capacity && !sets_grow(sets))
            return NO_SET;
        id = sets->count++;
    }
    memcpy(sets->bits + (size_t)id * sets->words, bits, bytes);
    sets->blocks[id] = 1;
    sets->live++;
    sets_link(sets, id);
    return id;
}

/* Count one block less for a set; without blocks it is gone. */
static void sets_leave(ColumnSets *sets, uint32_t id) {
    if (--sets->blocks[id])
        return;
    uint32_t *link = &sets->heads[bits_hash(set_bits(sets, id), sets->words) & (sets->buckets - 1)];
    while (*link != id)
        link = &sets->next[*link];
    *link = sets->next[id];
    sets->next[id] = sets->free;
    sets->free = id;
    sets->live--;
}

#endif
