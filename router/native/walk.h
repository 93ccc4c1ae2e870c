/* How far each unit holds a chain: one walk for all of them, that keeps the set of those that held every block so far.
 *
 * A unit holds a block when, for every cache group that it has, some tier holds it. What is on no GPU has to be loaded.
 */
#ifndef WARMROUTE_WALK_H
#define WARMROUTE_WALK_H

#include "holder_table.h"

enum { GPU, CPU, DISK, TIERS };

typedef struct {
    HolderTable *tiers[TIERS]; /* NULL: nothing is on that tier */
    uint64_t *without;         /* columns that do not have this group; NULL: all have it */
} Group;

typedef struct {
    uint32_t words;
    uint64_t *left;     /* columns that held every block so far */
    uint64_t *on_gpu, *on_cpu, *near, *held; /* of one block */
    int32_t *depth;     /* by column */
    int32_t *beyond_gpu, *cpu; /* by column: blocks that are not on the GPU; NULL where there is nothing but the GPU */
} Walk;

static inline void or_bits(uint64_t *into, const HolderTable *table, uint64_t block, uint32_t words) {
    const Entry *entry = table == NULL ? NULL : map_find((BlockMap *)&table->map, block);
    if (entry == NULL)
        return;
    const uint64_t *bits = set_bits(&table->sets, entry->set);
    for (uint32_t i = 0; i < words && i < table->sets.words; i++)
        into[i] |= bits[i];
}

static inline void end_columns(Walk *walk, uint32_t word, uint64_t bits, int32_t depth) {
    for (; bits; bits &= bits - 1)
        walk->depth[word * 64 + __builtin_ctzll(bits)] = depth;
}

static inline void count_columns(int32_t *counts, uint32_t word, uint64_t bits) {
    for (; bits; bits &= bits - 1)
        counts[word * 64 + __builtin_ctzll(bits)]++;
}

/* Look at one block. Returns whether a column is left. */
static int walk_block(Walk *walk, const Group *groups, Py_ssize_t group_count, uint64_t block, int32_t depth) {
    uint32_t words = walk->words;
    uint64_t any = 0;
    memcpy(walk->held, walk->left, words * sizeof(uint64_t));
    if (walk->cpu != NULL) {
        memcpy(walk->on_gpu, walk->left, words * sizeof(uint64_t));
        memcpy(walk->on_cpu, walk->left, words * sizeof(uint64_t));
    }
    for (Py_ssize_t g = 0; g < group_count; g++) {
        const Group *group = &groups[g];
        if (group->without != NULL)
            memcpy(walk->near, group->without, words * sizeof(uint64_t));
        else
            memset(walk->near, 0, words * sizeof(uint64_t));
        or_bits(walk->near, group->tiers[GPU], block, words);
        if (walk->cpu != NULL) {
            for (uint32_t i = 0; i < words; i++)
                walk->on_gpu[i] &= walk->near[i];
            or_bits(walk->near, group->tiers[CPU], block, words);
            for (uint32_t i = 0; i < words; i++)
                walk->on_cpu[i] &= walk->near[i];
            or_bits(walk->near, group->tiers[DISK], block, words);
        }
        for (uint32_t i = 0; i < words; i++)
            walk->held[i] &= walk->near[i];
    }
    for (uint32_t i = 0; i < words; i++) {
        uint64_t held = walk->held[i];
        end_columns(walk, i, walk->left[i] & ~held, depth);
        walk->left[i] = held;
        any |= held;
        if (walk->cpu != NULL) {
            count_columns(walk->beyond_gpu, i, held & ~walk->on_gpu[i]);
            count_columns(walk->cpu, i, held & ~walk->on_gpu[i] & walk->on_cpu[i]);
        }
    }
    return any != 0;
}

/* The next chunk of a chain, with its entries on their way from memory. Returns as `hashes_next`. */
static int next_chunk(BlockHashes *chain, const Group *groups, Py_ssize_t group_count, uint64_t chunk[CHUNK]) {
    int count = hashes_next(chain, chunk);
    for (Py_ssize_t g = 0; g < group_count; g++)
        for (int tier = 0; tier < TIERS; tier++)
            for (int i = 0; groups[g].tiers[tier] != NULL && i < count; i++)
                map_prefetch(&groups[g].tiers[tier]->map, chunk[i]);
    return count;
}

/* Walk along a chain until nobody holds more, a chunk behind what is fetched. Returns 0 with an exception set. */
static int walk_chain(Walk *walk, const Group *groups, Py_ssize_t group_count, BlockHashes *chain) {
    uint64_t chunks[2][CHUNK];
    int32_t depth = 0;
    int turn = 0, is_held = 1, count = next_chunk(chain, groups, group_count, chunks[turn]);
    while (is_held && count > 0) {
        int following = next_chunk(chain, groups, group_count, chunks[!turn]);
        if (following < 0)
            return 0;
        for (int i = 0; i < count && is_held; i++)
            is_held = walk_block(walk, groups, group_count, chunks[turn][i], depth++);
        turn = !turn;
        count = following;
    }
    if (count < 0)
        return 0;
    for (uint32_t i = 0; i < walk->words; i++)
        end_columns(walk, i, walk->left[i], depth);
    return 1;
}

#endif
