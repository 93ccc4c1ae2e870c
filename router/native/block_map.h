/* From a block's 64-bit hash to the id of its set of holders: open addressing in 256 parts.
 *
 * An entry is 12 bytes. A part grows by half when it is four fifths full, so a block costs 15 to 23 bytes. To grow one
 * part of 5 million blocks moves 20,000 entries: never long enough for a request to notice, which one table would be.
 */
#ifndef WARMROUTE_BLOCK_MAP_H
#define WARMROUTE_BLOCK_MAP_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAP_PARTS 256
#define MIN_ENTRIES 8u

typedef struct {
    uint32_t low, high; /* of the hash */
    uint32_t set;       /* NO_SET: the entry is empty */
} Entry;

typedef struct {
    Entry *entries;
    uint32_t capacity, used;
} Part;

typedef struct {
    Part parts[MAP_PARTS];
    uint64_t seed; /* this process's own: nobody can choose prompts whose blocks fall on one place */
    size_t size;
} BlockMap;

static inline uint64_t entry_hash(const Entry *entry) {
    return (uint64_t)entry->high << 32 | entry->low;
}

static inline uint64_t mixed(const BlockMap *map, uint64_t hash) {
    hash = (hash ^ map->seed) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
    return hash * 0xD6E8FEB86659FD93u;
}

/* The top byte names the part, the 32 bits below the place in it. */
static inline uint32_t home_of(uint64_t mix, uint32_t capacity) {
    return (uint32_t)((mix << 8 >> 32) * capacity >> 32);
}

static inline uint32_t after(uint32_t place, uint32_t capacity) {
    return place + 1 == capacity ? 0 : place + 1;
}

/* The entry of a hash, or the empty one where it would be. The part has entries, not all of them used. */
static inline Entry *place_in(const Part *part, uint64_t mix, uint64_t hash) {
    uint32_t place = home_of(mix, part->capacity);
    while (part->entries[place].set && entry_hash(&part->entries[place]) != hash)
        place = after(place, part->capacity);
    return &part->entries[place];
}

static int part_resize(const BlockMap *map, Part *part, uint32_t capacity) {
    Entry *entries = calloc(capacity, sizeof *entries);
    if (entries == NULL)
        return 0;
    Part resized = {entries, capacity, part->used};
    for (uint32_t i = 0; i < part->capacity; i++) {
        const Entry *entry = &part->entries[i];
        if (entry->set)
            *place_in(&resized, mixed(map, entry_hash(entry)), entry_hash(entry)) = *entry;
    }
    free(part->entries);
    *part = resized;
    return 1;
}

static inline void map_prefetch(const BlockMap *map, uint64_t hash) {
    uint64_t mix = mixed(map, hash);
    const Part *part = &map->parts[mix >> 56];
    if (part->capacity)
        __builtin_prefetch(&part->entries[home_of(mix, part->capacity)]);
}

/* Where a block's set is; NULL where the map does not have the block. Good until the map changes. */
static inline Entry *map_find(BlockMap *map, uint64_t hash) {
    uint64_t mix = mixed(map, hash);
    Part *part = &map->parts[mix >> 56];
    Entry *entry = part->used ? place_in(part, mix, hash) : NULL;
    return entry != NULL && entry->set ? entry : NULL;
}

/* Where a block's set is, or an empty entry that `map_keep` fills; NULL without memory. Good until the map changes. */
static inline Entry *map_entry(BlockMap *map, uint64_t hash) {
    uint64_t mix = mixed(map, hash);
    Part *part = &map->parts[mix >> 56];
    if ((uint64_t)(part->used + 1) * 5 > (uint64_t)part->capacity * 4) {
        uint32_t capacity = part->capacity < MIN_ENTRIES ? MIN_ENTRIES : part->capacity + part->capacity / 2;
        if (!part_resize(map, part, capacity))
            return NULL;
    }
    return place_in(part, mix, hash);
}

static inline void map_keep(BlockMap *map, Entry *entry, uint64_t hash, uint32_t set) {
    *entry = (Entry){(uint32_t)hash, (uint32_t)(hash >> 32), set};
    map->parts[mixed(map, hash) >> 56].used++;
    map->size++;
}

/* Empty an entry, and move those that had to go past it. */
static void part_remove(const BlockMap *map, Part *part, uint32_t hole) {
    uint32_t capacity = part->capacity;
    for (uint32_t place = after(hole, capacity); part->entries[place].set; place = after(place, capacity)) {
        uint32_t home = home_of(mixed(map, entry_hash(&part->entries[place])), capacity);
        uint32_t from_home = place >= home ? place - home : place + capacity - home;
        uint32_t from_hole = place >= hole ? place - hole : place + capacity - hole;
        if (from_home >= from_hole) {
            part->entries[hole] = part->entries[place];
            hole = place;
        }
    }
    part->entries[hole].set = 0;
    part->used--;
}

/* Give memory back where three quarters of a part are empty; without memory it stays as it is. */
static void part_shrink(const BlockMap *map, Part *part) {
    if (part->capacity > MIN_ENTRIES && part->used < part->capacity / 4)
        part_resize(map, part, part->capacity / 2 < MIN_ENTRIES ? MIN_ENTRIES : part->capacity / 2);
}

static inline void map_remove(BlockMap *map, Entry *entry) {
    Part *part = &map->parts[mixed(map, entry_hash(entry)) >> 56];
    part_remove(map, part, (uint32_t)(entry - part->entries));
    map->size--;
    part_shrink(map, part);
}

static void map_free(BlockMap *map) {
    for (int i = 0; i < MAP_PARTS; i++)
        free(map->parts[i].entries);
}

#endif
